"""A server on the loopback device that speaks the hub's protocol as far as `hf_hub_download`
asks.
"""

import contextlib
import dataclasses
import hashlib
import http.server
import threading
from collections.abc import Iterator


@dataclasses.dataclass
class Hub:
    """Repositories, and how the server answers.

    Attributes:
        files: content of each file, by repository and name.
        commit: the revision of all repositories, 40 hexadecimal digits.
        status: by repository, an answer that is no content, e.g. 401.
        errors: by repository, the `X-Error-Code` of such an answer.
        cut: how many bytes of the next contents are sent before the connection ends.
        requests: the method, path and range of each request.
    """

    files: dict[tuple[str, str], bytes] = dataclasses.field(default_factory=dict)
    commit: str = "a" * 40
    status: dict[str, int] = dataclasses.field(default_factory=dict)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)
    cut: list[int] = dataclasses.field(default_factory=list)
    requests: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    address: str = ""


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves a hub at `hub.address` until the end of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_content=False)

        def do_GET(self) -> None:
            self.answer(with_content=True)

        def answer(self, *, with_content: bool) -> None:
            hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
            repository, _, rest = self.path.lstrip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            content = hub.files.get((repository, name))
            status, error = hub.status.get(repository, 200), hub.errors.get(repository, "")
            if status == 200 and not any(known == repository for known, _ in hub.files):
                status, error = 404, "RepoNotFound"
            elif status == 200 and revision not in ("main", hub.commit):
                status, error = 404, "RevisionNotFound"
            elif status == 200 and content is None:
                status, error = 404, "EntryNotFound"
            body = content or b""
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            self.send_response(status if status != 200 or not start else 206)
            self.send_header("X-Repo-Commit", hub.commit)
            if error:
                self.send_header("X-Error-Code", error)
            if status != 200:
                body, start = b"", 0
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                last = len(body) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(body)}")
            self.end_headers()
            if with_content:
                sent = body[start:]
                if hub.cut and name == "model.safetensors":
                    sent = sent[: hub.cut.pop(0)]
                    self.close_connection = True
                self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
