"""Every code that a diagnostic can carry, with a page about it: what it means, why, an example and its fix.

1xx: text and syntax. 2xx: names and types. 3xx: values and limits. 4xx: models and planning. 5xx: programs written in
Python. Codes are stable: a code that is retired is never given to anything else.

A code is its file, `explanations/CODE.md`: its title, a sentence that explains it, prose, a block marked
```` ```qp fails ````, a block marked ```` ```qp ````, and for each file that the examples read a block marked with its
name (```` ```json order.schema.json ````). Examples that need Python are marked `python`. The tests compile both
programs of a page; `explain-error` and `docs/reference/errors.md` are made of the pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

# Codes that are no longer given, and what they said.
RETIRED = {"QP115": "not part of the language", "QP216": "second context", "QP269": "rows that are cut"}

_PROGRAMS = ("qp", "python")
_FOLDER = Path(__file__).with_name("explanations")
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """`title` names the error in a few words, `summary` explains it in a sentence, and `body` is the rest in Markdown.

    The programs `fails` and `fixed` are in it; both are None for a code that no plain text can show. `files` holds the
    files that they read, by name.
    """

    code: str
    title: str
    summary: str
    body: str
    fails: str | None
    fixed: str | None
    files: Mapping[str, str]

    @property
    def text(self) -> str:
        """The page as a terminal shows it."""
        return _BLOCK.sub(
            lambda match: f"{_heading(match[1], match[2])}\n\n{indent(match[3], '    ')}", self.body
        ).strip()


def _page(path: Path) -> Page:
    title, summary, body = path.read_text("utf-8").strip().split("\n\n", 2)
    blocks = [(match[1], match[2], match[3]) for match in _BLOCK.finditer(body)]
    programs = {info: text for language, info, text in blocks if language in _PROGRAMS}
    files = {info: text for language, info, text in blocks if language not in _PROGRAMS}
    name = title.removeprefix("# ")
    return Page(path.stem, name, summary, body, programs.get("fails"), programs.get(None), files)


def _heading(language: str, info: str | None) -> str:
    if language not in _PROGRAMS:
        return f"`{info}`:"
    return "This fails:" if info else "This is correct:"


CODES: Mapping[str, Page] = {path.stem: _page(path) for path in sorted(_FOLDER.glob("*.md"))}
