"""Every faulty program in `errors/` gives exactly the diagnostics beside it, from parser and checker together."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import Diagnostic, QpError, more_note, render, to_json
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.printable import cells
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Source
from qpdsl.planner.check.program import lower
from tests.support.golden import check

ERRORS = Path(__file__).parent / "errors"
CASES = sorted(ERRORS.glob("*.qp"))


def diagnose(source: Source) -> str:
    """What a user would read: errors, or the warnings of a program that has none."""
    try:
        program = lower(parse_file(source))
    except QpError as error:
        return str(error)
    return "\n\n".join(render(warning, source) for warning in program.warnings)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_diagnostics(path: Path) -> None:
    check(path.with_suffix(".txt"), diagnose(Source(path.name, path.read_text("utf-8"))))


def test_the_diagnostic_of_the_style_guide() -> None:
    text = (ERRORS / "unknown_column.txt").read_text("utf-8")
    assert "error[QP203]: `keep` reads `prm`, but no stage before it makes `prm`" in text
    assert "------- this stage makes `quality`" in text
    assert "help: use the score made above" in text


def findings(source: Source) -> tuple[Diagnostic, ...]:
    """All errors and warnings of a text."""
    try:
        return lower(parse_file(source)).warnings
    except QpError as error:
        return error.diagnostics


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_help_proposes_mends_the_error(path: Path) -> None:
    """What it hid may be seen then, but there are no more errors than before."""
    text = path.read_text("utf-8")
    before = findings(Source(path.name, text))
    for diagnostic in before:
        edit = diagnostic.edit
        if edit is not None:
            mended = text[: edit.span.start] + edit.text + text[edit.span.end :]
            after = findings(Source(path.name, mended))
            left = [(error.code, error.span.start) for error in after]
            assert (diagnostic.code, diagnostic.span.start) not in left, mended.splitlines()
            counts = [sum(one.severity == "error" for one in every) for every in (before, after)]
            assert counts[1] <= counts[0], mended.splitlines()


def test_a_mark_outside_the_window_has_its_own_line() -> None:
    head = "program p(a: text, " + "".join(f"name{i}: text, " for i in range(30))
    source = Source("p.qp", f"{head}a: text) {{ chat user=a }}")
    lines = diagnose(source).split("\n")
    for sign in "^-":
        index = next(i for i, line in enumerate(lines) if re.fullmatch(rf" +\| +{re.escape(sign)} .*", line))
        source_line = next(line for line in reversed(lines[:index]) if line.startswith(" 1 |"))
        assert source_line[lines[index].index(sign)] == "a"


def test_the_width_of_marks_that_take_no_cell() -> None:
    source = Source("p.qp", 'program p() {\n  chat user="ก็e\u0301" usr="x"\n}')
    line, carets = diagnose(source).split("\n")[3:5]
    assert cells(line[: line.index("usr")]) == carets.index("^")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("program p() {\0}", "QP101"),
        ("\ud800", "QP101"),
        ("#" * (MAX_SOURCE_BYTES + 1), "QP102"),
        ("é" * (MAX_SOURCE_BYTES // 2 + 1), "QP102"),
        ("program p() { return " + "(" * 65 + "1", "QP103"),
        ("{" * 65, "QP103"),
        ('program p() { chat user="x" | return ' + "1+" * 70 + "1 }", "QP103"),
        ('program p() { chat user="x" | return ' + "not " * 5000 + "true }", "QP103"),
        ("program p(n: int = " + "-" * 5000 + '1) { chat user="x" }', "QP103"),
    ],
)
def test_refused(text: str, code: str) -> None:
    with pytest.raises(QpError) as error:
        lower(parse_file(Source("p.qp", text)))
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == [code]


def test_nesting_up_to_the_limit_is_fine() -> None:
    nested = 'program p() { chat user="x" | return ' + "(" * 60 + "1" + ")" * 60 + " }"
    assert lower(parse_file(Source("p.qp", nested))).returns == "int"
    blocks = "repeat 2 { " * 60 + 'generate "m"' + " }" * 60
    assert lower(parse_pipeline(Source("-e", 'chat user="x" | ' + blocks))).returns == "text"


def test_choice_of_a_program() -> None:
    text = 'program a() { chat user="x" }\nprogram b() { chat user="x" }\n'
    assert lower(parse_file(Source("dir/b.qp", text))).name == "b"
    assert lower(parse_file(Source("c.qp", text)), "a").name == "a"
    with pytest.raises(QpError, match="QP202"):
        lower(parse_file(Source("c.qp", text)), "bb")


def test_json_has_the_same_facts() -> None:
    source = Source("p.qp", "program p(problem: text) {\n  chat usr=problem\n}\n")
    with pytest.raises(QpError) as error:
        lower(parse_file(source))
    assert [to_json(diagnostic, source) for diagnostic in error.value.diagnostics] == [
        {
            "code": "QP116",
            "severity": "error",
            "message": "`chat` has no role `usr`",
            "file": "p.qp",
            "line": 2,
            "column": 8,
            "end_line": 2,
            "end_column": 11,
            "label": "unknown role",
            "related": [],
            "notes": ["form: chat system= user= assistant= tool= messages= history=template|tokens"],
            "help": "did you mean `user`?",
            "edit": {"line": 2, "column": 8, "end_line": 2, "end_column": 11, "text": "user"},
        }
    ]


def test_render_of_wide_and_odd_characters() -> None:
    source = Source("p.qp", 'program p() {\n\tchat user="日本" usr="x"\n}')
    text = diagnose(source)
    assert '    chat user="日本" usr="x"\n   |                      ^^^' in text
    plain = render(parse_file(source).errors[0], source)
    coloured = render(parse_file(source).errors[0], source, colour=True)
    assert "\033[" in coloured
    assert re.sub(r"\033\[[0-9;]*m", "", coloured) == plain


def test_very_many_errors_are_cut() -> None:
    text = 'model m = "m"\nprogram p() {\n  chat user="x"\n' + "  generate m n=0\n" * 150 + "}\n"
    with pytest.raises(QpError) as error:
        lower(parse_file(Source("p.qp", text)))
    assert (len(error.value.diagnostics), error.value.more) == (100, 50)
    assert more_note(error.value.more) == "… and 50 more errors"
    assert str(error.value).endswith("\n\n… and 50 more errors")


# Red, green, yellow, blue, magenta, cyan of xterm, beside those of the Windows console.
ANSI = {
    31: ("cd0000", "c50f1f"), 32: ("00cd00", "13a10e"), 33: ("cdcd00", "c19c00"),
    34: ("0000ee", "0037da"), 35: ("cd00cd", "881798"), 36: ("00cdcd", "3a96dd"),
}  # fmt: skip


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_read_on_black_and_on_white() -> None:
    source = Source("p.qp", 'program p() -> text {\n  chat usr="x"\n  return text\n}\n')
    coloured = render(parse_file(source).errors[0], source, colour=True)
    warning = replace(parse_file(source).errors[0], severity="warning")
    coloured += render(warning, source, colour=True)
    numbers = {int(number) for codes in re.findall(r"\033\[([\d;]+)m", coloured) for number in codes.split(";")}
    for shade in (shade for number in numbers & ANSI.keys() for shade in ANSI[number]):
        light = luminance(shade) + 0.05
        assert min(light / 0.05, 1.05 / light) >= 2.3, shade
