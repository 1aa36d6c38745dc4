"""What a program can declare as its parameters, and names of other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.format.formatter import format_source, print_file
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower, lower_all
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan.logical import LogicalProgram
from tests.support.planner.lowered import program_of

HEAD = 'model slm = "zoo/counting-mini"\nschema Person { name: text, tags: [text](..3)? }\n'
BODY = " -> text {\n  chat user=q\n  generate slm\n}\n"


def program(params: str) -> LogicalProgram:
    return program_of(f"{HEAD}program p(q: text, {params}){BODY}", "p")


def faults(text: str, files: Files | None = None, models: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """The codes of all errors and warnings, with the text that each points at."""
    source = Source("p.qp", text)
    _, found = lower_all(parse_file(source), Environment(files or Files(), models=models or {}))
    return [(one.code, text[one.span.start : one.span.end]) for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("declared", "type_", "optional"),
    [
        ("[text]", "[text]", False),
        ("[[int]](1..)", "[[int]]", False),
        ("text?", "text", True),
        ('choice("a", "b")', "text", False),
        ("int(1..5)?", "int", True),
        ("messages", "messages", False),
        ("Person", "{name: text, tags: [text]}", False),
        ("[Person](..4)", "[{name: text, tags: [text]}]", False),
        ("{a: text, b: [int]}", "{a: text, b: [int]}", False),
    ],
)
def test_types_of_values(declared: str, type_: str, optional: bool) -> None:
    param = program(f"x: {declared}").params[1]
    assert (param.type, param.optional, param.declared) == (type_, optional, declared)
    assert (param.default is None) == (not optional)


def test_a_program_with_all_of_it_is_formatted_and_printed_the_same() -> None:
    text = (
        'use "shared.qp" as shared\n\n'
        "program p(\n"
        "  q: text,\n"
        '  shots: [text](1..9) = ["a", "b"],\n'
        "  note: text?,\n"
        '  style: choice("a", "b") = "a",\n'
        "  person: shared.Person?,\n"
        "  llm: model = shared.llm,\n"
        "  history: messages,\n"
        ") -> { chosen: text, rest: [text] } {\n"
        "  chat user=q\n"
        "  generate shared.llm as int(1..10) into n\n"
        "  generate llm as [{ a: text }](1..3) draft shared.slm\n"
        "  generate llm as { a: bool? } into r\n"
        "  generate llm as choice(shots)\n"
        "  call shared.solve(q, llm=shared.slm) into b\n"
        "  score shared.prm\n"
        "}\n"
    )
    file = parse_file(Source("p.qp", text))
    assert file.errors == () and format_source(file.source) == text
    assert parse_file(Source("p.qp", print_file(file))) == file


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        ("x: [txt]", ("QP206", "txt")),
        ("x: [text] = [1]", ("QP213", "[1]")),
        ("x: [text] = none", ("QP213", "none")),
        ("x: text = none", ("QP213", "none")),
        ('x: choice("a", "b") = "c"', ("QP213", '"c"')),
        ("x: [int](3..1)", ("QP301", "3..1")),
        ("x: int(1..2)(3)", ("QP109", "(")),
        ("x: model = 3", ("QP361", "3")),
        ("x: model?", ("QP361", "model")),
        ("x: [[model]]", ("QP206", "model")),
    ],
)
def test_declarations_that_cannot_be(declared: str, fault: tuple[str, str]) -> None:
    text = f"{HEAD}program p(q: text, {declared}){BODY}"
    try:
        found = faults(text)
    except QpError as error:
        found = [(one.code, text[one.span.start : one.span.end]) for one in error.diagnostics]
    assert found == [fault]


MODELS = (
    'model slm = "zoo/counting-mini"\n'
    "program inner(q: text, m: model) -> text {\n  chat user=q\n  generate m\n}\n"
    "program p(q: text, llm: model%s) -> text {\n"
    "  call inner(q, llm) into a\n  call inner(q, m=slm) into b\n"
    '  call inner(q, "zoo/counting") into c\n'
    '  chat user="{a} {b} {c}"\n  generate llm\n}\n'
)


def test_a_model_is_bound_by_the_caller_and_handed_on() -> None:
    text = MODELS % ""
    unbound, bound = (
        lower(parse_file(Source("p.qp", text)), "p", Environment(models=models))
        for models in ({}, {"llm": "some/model"})
    )
    assert unbound.model_params == ("llm",) and [param.name for param in unbound.params] == ["q"]
    assert unbound.models == {"llm": "", "slm": "zoo/counting-mini", "zoo/counting": "zoo/counting"}
    assert bound.models["llm"] == "some/model"
    assert program_of(MODELS % ' = "zoo/counting"', "p").models["llm"] == "zoo/counting"
    assert program_of(MODELS % " = slm", "p").models["llm"] == "zoo/counting-mini"


def test_a_model_that_cannot_do_what_it_is_asked() -> None:
    found = faults(MODELS % "", models={"llm": "zoo/counting-prm"})
    assert ("QP261", "llm") in found and all(code == "QP261" for code, _ in found)
    assert faults(MODELS.replace("m=slm", "m=3") % "") == [("QP361", "3")]
    assert faults(MODELS.replace("m=slm", "") % "") == [("QP231", "inner")]


ASKED = (
    '  score judge(%s, "How clear?", 1..5) into a\n  score prob(%s, "{text}?", "Yes") into b\n'
    '  best by compare(%s, "{a.text} {b.text}")\n  generate %s via filter(%s, 0.5)\n'
)


def test_a_model_parameter_stands_wherever_a_model_does() -> None:
    head = "program p(q: text, llm: model, prm: model) -> text {\n"
    body = "  chat user=q\n  generate llm\n  score prm given q\n" + ASKED % (("llm",) * 5)
    inner = head.replace("program p", "program inner") + body + "}\n"
    outer = "program p(q: text, x: model, y: model) -> text {\n  call inner(q, x, prm=y)\n}\n"
    given = {"llm": "zoo/counting", "prm": "zoo/counting-prm", "x": "zoo/counting", "y": "zoo/counting-prm"}
    for text in (head + body + "}\n", inner + outer):
        assert faults(text, models=given) == [] == faults(text)
    swapped = given | {"prm": "zoo/counting", "llm": "zoo/counting-prm"}
    assert ("QP262", "prm") in faults(head + body + "}\n", models=swapped)


def test_a_model_of_another_file_stands_wherever_a_model_does(tmp_path: Path) -> None:
    (tmp_path / "shared.qp").write_text(SHARED)
    body = "  chat user=q\n  generate shared.llm\n" + ASKED % (("shared.llm",) * 5)
    text = 'use "shared.qp" as shared\nprogram p(q: text) -> text {\n' + body + "}\n"
    assert faults(text, Files(tmp_path)) == []
    assert lower(parse_file(Source("p.qp", text)), "p", Environment(Files(tmp_path))).models == {
        "shared.llm": "zoo/counting-mini"
    }


SHARED = (
    'model llm = "zoo/counting-mini"\nschema Person { name: text }\n'
    "program solve(q: text) -> text {\n  chat user=q\n  generate llm\n}\n"
)
USER = (
    'use "shared.qp" as shared\nmodel llm = "zoo/counting"\n'
    "program p(q: text, who: shared.Person?) -> shared.Person {\n"
    '  call shared.solve(q) into a\n  chat user="{a} {who}"\n  generate llm\n'
    "  chat user=q\n  generate shared.llm as shared.Person\n}\n"
)


def test_files_with_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "shared.qp").write_text(SHARED)
    source = parse_file(Source("p.qp", USER))
    program = lower(source, "p", Environment(Files(tmp_path)))
    assert program.models == {"llm": "zoo/counting", "shared.llm": "zoo/counting-mini"}
    assert program.params[1].type == "{name: text}"
    other = lower(source, "p", Environment(Files(tmp_path), models={"shared.llm": "a", "llm": "b"}))
    assert other.models == {"llm": "b", "shared.llm": "a"}
    files = Files(tmp_path)
    assert faults(USER.replace(" as shared\nmodel", "\nmodel"), files)[0][0] == "QP208"  # two models are called `llm`
    assert faults(USER.replace("shared.solve", "shared.sole"), files) == [("QP202", "shared.sole")]
    assert faults('use "shared.qp" as shared\n' + USER, files)[0][0] == "QP208"


def test_a_name_has_one_file_before_it(tmp_path: Path) -> None:
    (tmp_path / "shared.qp").write_text(SHARED)
    for wrong in ("shared.llm.x", "shared[0]"):
        with pytest.raises(QpError) as caught:
            lower(parse_file(Source("p.qp", USER.replace("generate shared.llm", f"generate {wrong}"))), "p")
        assert any(found.code == "QP109" for found in caught.value.diagnostics)
