"""`docs/reference/errors.md` is written from the codes and their pages. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import re

from qpdsl.grammar.codes import CODES, RETIRED
from tests.support.golden import check
from tests.support.paths import ROOT

GROUPS = {
    "1": "Text and syntax",
    "2": "Names and types",
    "3": "Values and limits",
    "4": "Models and planning",
    "5": "Programs in Python",
}
INTRODUCTION = """\
Every diagnostic code, with its meaning and, if a text can show it, a program that fails and its fix.
`qpdsl explain-error QP203` shows the same in a terminal. Codes are stable: retired ones are never reused."""


def document() -> str:
    parts = ["# Errors", INTRODUCTION]
    for digit, group in GROUPS.items():
        codes = {name: code for name, code in CODES.items() if name[2] == digit}
        if not codes:
            continue
        parts.append(f"## {group}")
        parts.append("\n".join(f"- [{name}](#{name.lower()}): {code.title}" for name, code in codes.items()))
        for name, code in codes.items():
            body = re.sub(r"^```(\w+) fails$", rf"```\1 fails {name}", code.body, flags=re.MULTILINE)
            parts += [f"### {name}", f"**{code.title[:1].upper()}{code.title[1:]}.** {code.summary}", body]
    parts.append("## Retired")
    parts.append("\n".join(f"- {name}: {title}" for name, title in RETIRED.items()))
    return "\n\n".join(parts)


def test_the_document_is_made_of_the_pages() -> None:
    check(ROOT / "docs" / "reference" / "errors.md", document())
