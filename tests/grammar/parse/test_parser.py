"""What parses, to what, and which layouts are the same program."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.grammar import ast
from qpdsl.grammar.files import Files
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from tests.support.grammar.trees import parsed
from tests.support.paths import ROOT

PROGRAMS = sorted((ROOT / "programs").glob("*.qp"))
BEAM = (ROOT / "programs" / "beam_search.qp").read_text("utf-8")

# The examples of the language's description that are inside the core, as they stand there.
EXAMPLES = [
    r"""
# Best of N, chosen by the verifier's weighted vote.
model llm = "zoo/counting"
model prm = "zoo/counting-prm"

program weighted_best_of_n(problem: text, n: int = 16) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=256
  score prm reduce=last
  extract answer = /The answer is (-?\d+)/
  vote answer weight=score
}
""",
    r"""
model llm = "zoo/counting"
# Self-consistency. The vote may stop sampling once no outstanding sample can change the winner: the planner's affair.
program self_consistency(problem: text, n: int = 32) -> text {
  chat user=problem
  generate llm n=n temperature=0.8
  extract answer = /The answer is (-?\d+)/
  vote answer
}
""",
    r"""
model llm = "zoo/counting"
model prm = "zoo/counting-prm"
# Beam search over reasoning steps under a process reward model.
program beam_search(problem: text, width: int = 4, expand: int = 4, depth: int = 40) -> text {
  chat user=problem
  repeat depth until all(finished) {
    generate llm n=expand stop="\n\n" temperature=0.8
    score prm
    keep width by score
  }
  best by score
}
""",
]


def value(text: str) -> ast.Expr:
    """The expression that `text` is."""
    stage = parsed(f"program p() {{ return {text} }}").programs[0].body[0]
    assert isinstance(stage, ast.Return)
    return stage.value


def string(text: str) -> tuple[str | ast.Name, ...]:
    template = value(text)
    assert isinstance(template, ast.Template)
    return template.parts


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_the_language(text: str) -> None:
    program = lower(parsed(text))
    assert program.returns == "text"
    assert not program.warnings


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_shipped_programs(path: Path) -> None:
    file = parse_file(Source(path.name, path.read_text("utf-8")))
    program = lower(file, environment=Environment(Files(path.parent)))
    assert program.name == path.stem
    assert program.params[0].default is None
    assert not program.warnings


def test_layout_is_not_meaning() -> None:
    beam = parsed(BEAM)
    body = re.sub(r"#.*", "", BEAM)
    one_line = re.sub(r"\n *(?=generate|score|keep|best|extract|return|repeat)", " | ", body)
    one_line = one_line.replace("{ |", "{").replace("}\n |", "} |")
    assert one_line.count("\n") < body.count("\n") - 5
    assert parsed(one_line) == beam
    assert parsed(BEAM.replace("\n", "\r\n")) == beam
    assert parsed(BEAM.replace("\n", '  # a comment with " and { and /\n\n\t# and more\n')) == beam
    assert parsed("\ufeff" + BEAM) == beam
    assert parsed(BEAM.replace("problem: text, ", "\n  problem: text,\n\n  ")) == beam
    assert parsed(BEAM.replace(" temperature=0.8", "\n  # why\n      temperature=0.8")) == beam
    assert parsed(BEAM.replace(" until", "\n  until").replace(" by score", "\n by score")) == beam
    assert parsed(BEAM.replace(" {", "\n{").replace(" ->", "\n  ->")) == beam
    assert parsed(BEAM.replace("  score prm", "  | score prm")) == beam


@st.composite
def layouts(draw: st.DrawFn) -> str:
    """The beam search with its separators and spaces drawn anew."""
    gap = st.sampled_from([" ", "  ", "\t"])
    separator = st.sampled_from(["\n", " | ", "\n\n", "\n  # note\n", "\n| ", "|\n", " |\n# note\n", "\r\n"])
    ending = st.sampled_from(["\n", "\n# note\n", " ", ""])
    stages = [
        "chat system=system user=problem",
        'repeat depth until all(finished) {{{0}generate llm n=expand stop="\\n\\n"{1}temperature=temperature '
        "max_tokens=max_tokens{2}score prm{3}"
        "keep width by score{4}}}",
        "best by score",
        "extract answer = final_answer",
        "return answer",
    ]
    inner = [
        draw(ending),
        draw(st.sampled_from([" ", "\n ", " # note\n"])),
        draw(separator),
        draw(separator),
        draw(ending),
    ]
    stages[1] = stages[1].format(*inner)
    head = BEAM[BEAM.index("model llm") : BEAM.index(" {\n") + 2]
    text = draw(ending) + stages[0]
    for stage in stages[1:]:
        text += draw(separator) + stage
    return head + text.replace(" ", draw(gap)) + draw(ending) + "}"


@given(layouts())
def test_any_layout_parses_to_the_same_tree(text: str) -> None:
    assert parsed(text) == parsed(BEAM)


def test_strings() -> None:
    assert string(r'"a\tb\n\"\\\u00e9"') == ('a\tb\n"\\é',)
    assert string('""') == ()
    assert string('"{a}{b_1} {"') == (ast.Name("a", span=Span(0, 0)), ast.Name("b_1", span=Span(0, 0)), " {")
    assert string(r'"{\"name\": \"x\", \"n\": {1}} \{a}"') == ('{"name": "x", "n": {1}} {a}',)
    assert string('"{true} {a b} {}"') == ("{true} {a b} {}",)
    assert string('"# no comment | { /"') == ("# no comment | { /",)


def test_long_strings_are_dedented() -> None:
    assert string('"""one "line" """') == ('one "line" ',)
    assert string('"""\n    a\n\n      b {x}\n    """') == ("a\n\n  b ", ast.Name("x", span=Span(0, 0)))
    assert string('"""\n    a\n  """') == ("  a",)
    assert string('"""first\n    second\n    third"""') == ("first\nsecond\nthird",)
    assert string('"""\r\n  a\r\n  b\r\n  """') == ("a\nb",)


def test_spans_in_a_long_string_are_those_of_the_source() -> None:
    text = 'program p() {\n  prompt """\n    a {one}\n      b {two}\n    """\n}'
    stage = parsed(text).programs[0].body[0]
    assert isinstance(stage, ast.Prompt)
    names = [part for part in stage.text.parts if isinstance(part, ast.Name)]
    assert [text[name.span.start : name.span.end] for name in names] == ["one", "two"]


def test_precedence() -> None:
    assert value("1 + 2 * 3 - -4 == 5 and not a or b") == value("(((1 + (2 * 3)) - (-4)) == 5 and (not a)) or b")
    assert value("a - b - c") == value("(a - b) - c")
    assert value("not a == b") == value("not (a == b)")
    assert value("(\n 1 +\n 2\n)") == value("1 + 2")
    assert value("text matches /a|b/ and x") == value("(text matches /a|b/) and x")


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [(".a", ("a",)), (".a.b[0]", ("a", "b", 0)), (".[2].as", (2, "as")), (".a[1][2]", ("a", 1, 2))],
)
def test_json_paths(pattern: str, steps: tuple[str | int, ...]) -> None:
    stage = parsed(f"program p() {{ extract x = {pattern} }}").programs[0].body[0]
    assert isinstance(stage, ast.Extract)
    assert isinstance(stage.pattern, ast.JsonPath)
    assert stage.pattern.steps == steps


@pytest.mark.parametrize(
    "pattern", [r"a\/b", r"[#|{}\"]", r" \d+ ", r"(?i)x", r"(?P<n>x)(?:y)", "#", "a{2,3}?", r"[]\]]", r"\A[{}]}a{2,}\{"]
)
def test_regexes_are_taken_as_they_stand(pattern: str) -> None:
    stage = (
        parsed(f"program p() {{\n extract x = /{pattern}/ # no\n keep 1 by x matches /{pattern}/\n}}").programs[0].body
    )
    assert isinstance(stage[0], ast.Extract)
    assert isinstance(stage[0].pattern, ast.Regex)
    assert stage[0].pattern.pattern == pattern


def expressions() -> st.SearchStrategy[ast.Expr]:
    at = Span(0, 0)
    names = st.sampled_from(["a", "score", "text"]).map(lambda id: ast.Name(id, span=at))
    numbers = st.one_of(st.integers(0, 10**12), st.floats(0, 1e300, allow_nan=False))
    words = st.sampled_from([True, False, None])
    literals = st.one_of(numbers, words).map(lambda v: ast.Literal(v, span=at))
    texts = st.text(st.characters(exclude_categories=("Cs", "Cc"))).map(
        lambda t: ast.Template((t,) if t else (), span=at)
    )
    binary = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
    return st.recursive(
        st.one_of(names, literals, texts),
        lambda inner: st.one_of(
            st.builds(lambda op, x: ast.Unary(op, x, span=at), st.sampled_from(["-", "not"]), inner),
            st.builds(lambda op, x, y: ast.Binary(op, x, y, span=at), st.sampled_from(binary), inner, inner),
            st.builds(lambda x: ast.Matches(x, ast.Regex("a", span=at), span=at), inner),
            st.builds(lambda x: ast.Apply("min", tuple(x), span=at, name_span=at), st.lists(inner, max_size=3)),
        ),
        max_leaves=12,
    )


@given(expressions())
def test_formatted_expressions_parse_to_themselves(expr: ast.Expr) -> None:
    assert value(format_expr(expr)) == expr


def test_pipelines() -> None:
    text = 'chat user="{topic}: {problem}" | generate llm n=k temperature=t'
    text += " | extract a=/(\\d+)\\.$/ | vote a weight=w * tokens"
    file = parse_pipeline(Source("-e", text))
    program = file.programs[0]
    assert not file.errors
    assert program.name == "main"
    assert [(param.name, param.type.name) for param in program.params] == [
        ("topic", "text"),
        ("problem", "text"),
        ("k", "int"),
        ("t", "float"),
        ("w", "float"),
    ]
    lowered = lower(file)
    assert lowered.models == {"llm": "zoo/counting"}
    assert lowered.plan[-1].op.stage == 4


def test_a_pipeline_without_stages() -> None:
    assert [error.code for error in parse_pipeline(Source("-e", " # nothing\n")).errors] == ["QP121"]
