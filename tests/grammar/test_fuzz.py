"""Whatever is put in, either a program comes out or a `QpError` whose diagnostics point into the text."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qpdsl.grammar.diagnostic import QpError, to_json
from qpdsl.grammar.parse import parse_file, parse_pipeline
from qpdsl.grammar.source import Source
from qpdsl.planner.explain import explain
from qpdsl.planner.lower import lower
from qpdsl.planner.plan import plan

ROOT = Path(__file__).parents[2]
TEXTS = [path.read_text("utf-8") for path in sorted((ROOT / "programs").glob("*.qp"))]
_PIECE = re.compile(r'\w+|"[^"\n]*"|\s+|[^\w\s]')
SIGNS = [
    '"',
    '"""',
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "|",
    "/",
    "\\",
    "#",
    ".",
    "==",
    "->",
    ";",
    "é",
    "“",
    "\0",
    "\t",
    "\n",
]
WORDS = [
    "as",
    "where",
    "schema",
    "per",
    "not",
    "and",
    "matches",
    "true",
    "none",
    "1e999",
    "0x" + "f" * 5000,
    "8.",
    '"a\\\n',
    "&&",
    "größe",
    "/a/b/",
    "{,3}",
    "-1",
    ".a[0]",
    "/a(/",
    "\r\n",
]
PIECES = [*sorted({piece for text in TEXTS for piece in _PIECE.findall(text)}), *SIGNS, *WORDS]


def survives(text: str) -> None:
    for parse in (parse_file, parse_pipeline):
        source = Source("p.qp", text)
        try:
            file = parse(source)
            assert file.complete == (not file.gaps)
            explain(plan(lower(file)))
        except QpError as error:
            assert error.diagnostics
            for diagnostic in error.diagnostics:
                assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(text)
                to_json(diagnostic, source)
            assert str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", " "])), max_size=50))
def test_token_soup(soup: list[tuple[str, str]]) -> None:
    survives("".join(piece + gap for piece, gap in soup))


@st.composite
def mutations(draw: st.DrawFn) -> str:
    pieces = _PIECE.findall(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        index = draw(st.integers(0, len(pieces) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                del pieces[index]
            case 1:
                pieces.insert(index, draw(st.sampled_from(PIECES)))
            case 2:
                pieces[index] = draw(st.sampled_from(PIECES))
            case _:
                pieces[index:index] = pieces[index : index + draw(st.integers(1, 8))]
    return "".join(pieces)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutations())
def test_mutated_programs(text: str) -> None:
    survives(text)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    survives(text)
