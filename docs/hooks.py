"""Adds experiments/, which is outside docs/, to the site."""

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
                files.append(
                    File.generated(
                        config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path)
                    )
                )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Maps `../experiments` in docs/ to `experiments`, and `../docs` in experiments/ to `..`.

    Tutorials are one folder deeper.
    """
    folder = page.file.src_uri.rpartition("/")[0]
    if folder not in ("", "tutorials"):
        return markdown.replace("](../docs/", "](../")
    up = "../" if folder else ""
    return re.sub(rf"\]\({up}\.\./({'|'.join(_BESIDE)})/", rf"]({up}\1/", markdown)
