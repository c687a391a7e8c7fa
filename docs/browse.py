"""Opens pages of the built site in Chromium: `python docs/browse.py build/site`.

A page must load without a complaint on the console, and fit the width of a phone. Screenshots go
to the folder `browsed` next to the site. Exit code 1 if a page fails.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

PAGES = ("index.html", "tutorials/stacks.html", "benchmarks.html", "settings.html", "devices.html")
NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = (
    '<iframe src="{}" style="width:390px;height:3000px"></iframe><script>onload = () => {{'
    "const page = frames[0].document.documentElement; document.title ="
    " `${{page.scrollWidth}} of ${{page.clientWidth}}`}}</script>"
)


def browse(browser: str, folder: pathlib.Path, page: str, *flags: str) -> str:
    """Returns what the browser prints of a page; raises RuntimeError for a complaint."""
    words = "--headless --no-sandbox --disable-gpu --allow-file-access-from-files --v=0".split()
    words += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", *flags, page]
    done = subprocess.run(
        [browser, *words], capture_output=True, text=True, env=os.environ | {"HOME": str(folder)}
    )
    if done.returncode or "CONSOLE" in done.stderr:
        raise RuntimeError(f"{page}: {done.stderr[-2000:]}")
    return done.stdout


def main(site: pathlib.Path) -> int:
    """Opens the pages and returns the exit code."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print(f"SKIPPED: no page was opened; none of {', '.join(NAMES)} is installed")
        return 0
    folder, failed = site.absolute().parent / "browsed", 0
    folder.mkdir(exist_ok=True)
    for page in PAGES:
        path = site.absolute() / page
        phone, picture = path.with_name("phone.html"), folder / f"{path.stem}.png"
        phone.write_text(PHONE.format(path.name))
        try:
            shown = browse(browser, folder, phone.as_uri(), "--dump-dom")
            browse(
                browser, folder, path.as_uri(), f"--screenshot={picture}", "--window-size=1280,1600"
            )
            fits = re.search(r"<title>(3[0-9]{2}) of \1</title>", shown)
            problem = "" if fits else "is wider than a phone"
        except RuntimeError as error:
            problem = str(error)
        phone.unlink()
        failed += bool(problem)
        print(f"{page}: {problem or 'opened'}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
