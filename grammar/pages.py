"""A page for every code of a diagnostic: what it means, why, an example that fails and one that is mended.

The pages are the files `explanations/CODE.md`: prose, a block marked ```` ```qp fails ````, a block marked
```` ```qp ````, and for each file that the examples read a block marked with its name
(```` ```json order.schema.json ````). The examples of what only Python can get wrong are marked `python`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import indent

from qpdsl.grammar.codes import CODES

_PROGRAMS = ("qp", "python")
_FOLDER = Path(__file__).with_name("explanations")
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """`body` is all of the page in Markdown. A code that no plain text can show has no `fails` and no `fixed`."""

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


@cache
def page(code: str) -> Page:
    """The page of a code. Raises KeyError for a code that there is not."""
    known = CODES[code]
    body = (_FOLDER / f"{code}.md").read_text("utf-8").strip()
    blocks = [(match[1], match[2], match[3]) for match in _BLOCK.finditer(body)]
    programs = {info: text for language, info, text in blocks if language in _PROGRAMS}
    files = {info: text for language, info, text in blocks if language not in _PROGRAMS}
    return Page(code, known.title, known.explanation, body, programs.get("fails"), programs.get(None), files)


def _heading(language: str, info: str | None) -> str:
    if language not in _PROGRAMS:
        return f"`{info}`:"
    return "This fails:" if info else "This is right:"
