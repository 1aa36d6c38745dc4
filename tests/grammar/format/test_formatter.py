"""The formatter: one layout, the same tree, every comment kept; formatting what is formatted changes nothing."""

import re
from pathlib import Path

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.format.formatter import format_source, print_file
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from tests.support.golden import check
from tests.support.paths import ROOT
from tests.support.timing import assert_quick, cpu_seconds

LAYOUTS = sorted((Path(__file__).parent / "layouts").glob("*.qp"))
PROGRAMS = sorted((ROOT / "programs").glob("*.qp"))


def formatted(text: str) -> str:
    return format_source(Source("p.qp", text))


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_layouts(path: Path) -> None:
    text = path.read_text("utf-8")
    laid_out = formatted(text)
    check(path.with_suffix(".txt"), laid_out.removesuffix("\n"))
    assert formatted(laid_out) == laid_out
    assert parse_file(Source("p.qp", laid_out)) == parse_file(Source("p.qp", text))
    strings = re.compile(r'""".*?"""', re.DOTALL)
    assert all(len(line) <= 100 or '"' in line for line in strings.sub("", laid_out).split("\n"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_shipped_programs_are_laid_out(path: Path) -> None:
    text = path.read_text("utf-8")
    assert formatted(text) == text


@pytest.mark.parametrize("path", [*PROGRAMS, *LAYOUTS], ids=lambda path: path.stem)
def test_a_tree_is_printed_as_it_was_parsed(path: Path) -> None:
    file = parse_file(Source("p.qp", path.read_text("utf-8")))
    printed = print_file(file)
    assert parse_file(Source("p.qp", printed)) == file
    assert formatted(printed) == printed


def test_what_does_not_parse_is_refused() -> None:
    with pytest.raises(QpError, match="QP110"):
        formatted("program p() { genrate llm }")


@pytest.mark.parametrize(
    ("text", "expected"), [("", ""), ("\n\n# a\n\n\n#b  \n", "# a\n\n#b\n"), ('model m="a"', 'model m = "a"\n')]
)
def test_files_without_programs(text: str, expected: str) -> None:
    assert formatted(text) == expected


def test_texts_that_no_source_holds_are_escaped() -> None:
    at = Span(0, 0)
    texts = ('{a} "\\\n', "{a", "} \0é😀")
    stages = (
        ast.Prompt(ast.Template(texts, span=at), span=at),
        ast.Extract(ast.Name("x", span=at), ast.Regex("a/b\\/c", span=at), span=at),
    )
    program = ast.Program("p", (), None, stages, span=at, name_span=at)
    printed = print_file(ast.File(Source("p.qp", ""), (), (program,), span=at))
    prompt, extract = parse_file(Source("p.qp", printed)).programs[0].body
    assert prompt == ast.Prompt(ast.Template(("".join(texts),), span=at), span=at)
    assert "/a\\/b\\/c/" in printed
    assert isinstance(extract, ast.Extract)


def test_a_pipeline_prints_as_a_file() -> None:
    file = parse_pipeline(Source("-e", "chat user=q | branch { { split 2 } { generate llm | where finished } }"))
    printed = print_file(file)
    assert parse_file(Source("p.qp", printed)).programs[0].body == file.programs[0].body


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_shipped_program_parses_in_no_time(path: Path) -> None:
    """One to three milliseconds of processor time; the bound leaves room for slow machines."""
    source = Source(path.name, path.read_text("utf-8"))
    assert_quick(lambda: cpu_seconds(lambda: parse_file(source)), 0.02)


def test_a_large_source_takes_time_in_proportion() -> None:
    """Eight times the text, about eight times the processor time; the bound is far from the 64 of a square."""
    unit = "repeat 2 {\n" * 20 + 'generate "m" n=2 # why\n' + "}\n" * 20
    small, large = (f'program p() {{\nchat user="x"\n{unit * count}}}\n' for count in (15, 120))
    assert_quick(lambda: cpu_seconds(lambda: formatted(large)) / cpu_seconds(lambda: formatted(small)), 20)
