"""Every link between the documents leads somewhere, and the index lists every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted(path for folder in ("benchmarks", "family") for path in (ROOT / folder).rglob("README.md")),
]
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# In a docstring or a message, as from the root of the checkout.
NAMED = re.compile(r"(?<![\w/.'-])(?<!ggml's `)docs/[\w/]+\.md(?:#[\w-]+)?")


def lines(path: Path) -> Iterator[str]:
    """The lines outside of blocks of code."""
    block = False
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("```"):
            block = not block
        elif not block:
            yield line


@cache
def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    headings = (line.lstrip("#").strip().lower() for line in lines(path) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def is_there(target: str, folder: Path) -> bool:
    place, _, anchor = target.partition("#")
    path = (folder / place).resolve()
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(CODE.sub("", "\n".join(lines(document)))):
        if target.startswith("#"):
            assert target[1:] in anchors(document), target
        elif not target.startswith(("http://", "https://")):
            assert is_there(target, document.parent), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_names_a_machine(document: Path) -> None:
    text = document.read_text("utf-8")
    assert str(ROOT) not in text and not re.search(r"(?<![\w.])/(?:root|home|Users)/\w", text)


def test_pages_that_code_names_are_there() -> None:
    folders = ("benchmarks", "executor", "grammar", "planner", "programs", "qpdsl", "tests", "tui")
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            assert [found for found in NAMED.findall(text) if not is_there(found, ROOT)] == [], path


def test_the_index_lists_every_page_once() -> None:
    listed = [target for line in lines(DOCS / "index.md") for target in LINK.findall(line) if "#" not in target]
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.name != "index.md"]
    assert sorted(target for target in listed if not target.startswith("..")) == sorted(pages)
