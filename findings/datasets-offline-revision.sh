#!/bin/sh
# Question: which data does load_dataset(name, revision=...) of Hugging Face's datasets return
# without a network, if two revisions of the dataset have been downloaded?
# Guess: those of the given revision, or an error if it is not in the cache.
# What happens: the revision is ignored. The revision that was downloaded last is returned, for
# another tag, for a full commit hash, and for a revision that never existed. The warning says
# "latest cached version" and names no revision.
# Seen with datasets 5.2.0 and huggingface_hub 2.4.0.
# Why it matters: compute nodes of a cluster often have no network. A paper's pinned revision is
# downloaded on another machine, a newer one too, and every run trains on the newer one. Compare
# builder.hash with the commit, or give the folder that snapshot_download(revision=...) returns.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check datasets==5.2.0 \
    huggingface_hub==2.4.0
cat >load.py <<'END'
import sys

import datasets

table = datasets.load_dataset("owner/set", revision=sys.argv[1], split="train")
print(f"revision {sys.argv[1]}: value {table['value'][0]}")
END
cat >find.py <<'END'
import hashlib
import http.server
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse

import pyarrow
import pyarrow.parquet

FILE = "data/train-00000-of-00001.parquet"
COMMITS = {"v1": "1" * 40, "v2": "2" * 40, "main": "2" * 40}


def parquet(value):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"value": [value]}), file)
    return file.getvalue()


FILES = {"1" * 40: parquet(1), "2" * 40: parquet(2)}


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub on this machine, with one dataset of two revisions, v1 and v2."""

    def do_GET(self):
        url = urllib.parse.urlsplit(urllib.parse.unquote(self.path))
        parts = re.fullmatch(r"(/api)?/datasets/owner/set(?:/(\w+)/(\w+))?/?(.*)", url.path)
        is_api, what, revision, rest = parts.groups() if parts else ("", "", "", "")
        commit = COMMITS.get(revision or "main", revision)
        answer, headers = None, {}
        if is_api and what != "tree":
            answer = {"id": "owner/set", "sha": commit, "siblings": [{"rfilename": FILE}]}
        elif is_api and rest in ("", "data"):
            whole = rest == "data" or "recursive=true" in url.query.lower()
            kind, path = ("file", FILE) if whole else ("directory", "data")
            answer = [{"type": kind, "path": path, "size": 1, "oid": "0" * 40}]
        if answer is not None:
            body, headers = json.dumps(answer).encode(), {"Content-Type": "application/json"}
        elif rest == FILE:
            body = FILES[commit]
            tag = hashlib.sha256(body).hexdigest()
            headers = {"ETag": f'"{tag}"', "X-Repo-Commit": commit}
        else:
            body = b""
        self.send_response(200 if headers else 404)
        for name, value in headers.items():
            self.send_header(name, value)
        if not headers:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


def load(revision, **more):
    environment = os.environ | more
    command = [sys.executable, "load.py", revision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(done.stdout.strip() or done.stderr.strip().splitlines()[-1], flush=True)


for name in ("datasets", "huggingface_hub"):
    print(name, importlib.metadata.version(name))
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
for revision in ("v1", "v2", "v1"):
    load(revision)
print("without a network:")
for revision in ("v1", "v2", "1" * 40, "never"):
    load(revision, HF_HUB_OFFLINE="1")
END
HF_HOME="$folder/home" venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
datasets 5.2.0
huggingface_hub 2.4.0
revision v1: value 1
revision v2: value 2
revision v1: value 1
without a network:
revision v1: value 2
revision v2: value 2
revision 1111111111111111111111111111111111111111: value 2
revision never: value 2
END
