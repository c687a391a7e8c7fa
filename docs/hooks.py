"""How do the experiments get into the site? They lie beside docs/; MkDocs takes them as if they lay in it."""

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = pathlib.Path(__file__).parents[1]
_BESIDE = ("experiments", "benchmarks", "deploy", "examples")
_KINDS = (".md", ".png", ".svg", ".json", ".yaml", ".sh", ".py", ".ipynb")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for folder in _BESIDE:
        for path in sorted(_ROOT.joinpath(folder).rglob("*")):
            if path.suffix in _KINDS and "__pycache__" not in path.parts:
                files.append(File.generated(config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What is `../experiments` from docs/ on GitHub is `experiments` in the site, and `../docs` from there is `..`."""
    markdown = markdown.replace("](../docs/", "](../")
    return re.sub(rf"\]\(\.\./({'|'.join(_BESIDE)})/", r"](\1/", markdown) if "/" not in page.file.src_uri else markdown
