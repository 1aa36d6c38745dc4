"""For MkDocs: the order of the pages, and what they lead to outside `docs/`, which becomes a part of the site.

A page outside (a README, measured results) gets a page under `source/`, and so does a program or data file, as text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_ENTRY = re.compile(r"\[([^]]+)\]\(([^)\s#]+\.md)\)")
# Of code nothing is a link: fenced blocks, and what stands between backticks.
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
# What stands behind the language of a block is for the tests that run it.
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_PICTURES = (".svg", ".png")
# Where each page of the site stands in the checkout.
_places: dict[str, Path] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages in the order of the index, below its headings."""
    nav: list[Any] = ["index.md"]
    entries: list[Any] = nav
    for line in (ROOT / "docs" / "index.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            entries = []
            nav.append({line[3:]: entries})
        entries += [{_title(text): _uri(ROOT / "docs" / target)} for text, target in _ENTRY.findall(line)]
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, and all outside `docs/` that they lead to."""
    _places.clear()
    for file in files.documentation_pages():
        _places[file.src_uri] = ROOT / "docs" / file.src_uri
    pages = list(_places.values())
    for page in pages:
        for target in _targets(page):
            uri = _uri(target)
            if files.get_file_from_path(uri) is not None or not target.is_file():
                continue
            if target.suffix in _PICTURES:
                files.append(File.generated(config, uri, abs_src_path=str(target)))
                continue
            files.append(File.generated(config, uri, content=_text(target)))
            _places[uri] = target
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text as the site's Markdown has it, with links that lead to where things are there."""
    place = _places[page.file.src_uri]
    if place.suffix != ".md":
        return markdown

    def moved(link: re.Match[str]) -> str:
        before, target, anchor, after = link.groups()
        path = (place.parent / target).resolve()
        if "://" in target or path.is_dir() or not path.exists():
            # Folders are for those who have the checkout.
            return "](#)" if path.is_dir() else link[0]
        led = os.path.relpath(_uri(path), Path(page.file.src_uri).parent)
        return f"{before}{led}{anchor or ''}{after}"

    return _outside_code(_FENCE.sub(r"\1", markdown), lambda text: _LINK.sub(moved, text))


def _targets(page: Path) -> list[Path]:
    """The files that a page leads to."""
    text = _outside_code(page.read_text("utf-8"), lambda text: text, code=lambda text: "")
    return [(page.parent / target).resolve() for _, target, _, _ in _LINK.findall(text) if "://" not in target]


def _outside_code(text: str, change: Callable[[str], str], code: Callable[[str], str] = lambda text: text) -> str:
    # Links may have code in them, so what is between backticks is put aside and not cut out.
    parts = _CODE.split(text)
    kept = parts[1::2]
    marked = change("".join(part if number % 2 == 0 else f"\0{number // 2}\0" for number, part in enumerate(parts)))
    return re.sub("\0([0-9]+)\0", lambda mark: code(kept[int(mark[1])]), marked)


def _title(text: str) -> str:
    return (text[0].upper() + text[1:]).replace("`", "")


def _uri(path: Path) -> str:
    """Where a file of the checkout stands on the site."""
    docs, path = ROOT / "docs", path.resolve()
    if path.is_relative_to(docs):
        return path.relative_to(docs).as_posix()
    uri = f"source/{path.relative_to(ROOT).as_posix()}"
    return uri if path.suffix in (".md", *_PICTURES) else f"{uri}.md"


def _text(path: Path) -> str:
    """A page of a file: its own text, or that as code."""
    text = path.read_text("utf-8")
    return text if path.suffix == ".md" else f"# {path.name}\n\n```\n{text}```\n"
