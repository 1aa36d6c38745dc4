"""What lowering makes of a program: operators, columns, types, what it gives back."""

import json
import time
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from qpdsl.planner import ops
from qpdsl.planner.baseline import greedy_of
from qpdsl.planner.describe import describe
from qpdsl.planner.environment import Environment
from qpdsl.planner.guidance import FORMATS, refusal
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from qpdsl.planner.lower import check, lower
from qpdsl.planner.plan import plan
from qpdsl.planner.verify import InvalidPlan, verify

PROGRAMS = Path(__file__).parents[2] / "programs"
START = "chat user=problem | generate llm n=4 | score prm | extract answer = /x/ | "


def lowered(text: str) -> LogicalProgram:
    return lower(parse_pipeline(Source("-e", text)))


def chain(program: LogicalProgram) -> list[ops.Operator]:
    return [program.plan.op(node) for node in program.plan.order()]


def described(plan: LogicalPlan) -> list[tuple[int, str, list[str]]]:
    """Every operator, those of bodies too, with its stage and columns."""
    found = []
    for node in plan.order():
        op = plan.op(node)
        if not isinstance(op, ops.Start):
            found.append((op.stage, describe(op, {}), list(plan.columns(node))))
        if isinstance(op, ops.Repeat):
            found += described(op.body)
    return found


def last(program: LogicalProgram) -> ops.Return:
    op = program.plan.op(program.plan.root)
    assert isinstance(op, ops.Return)
    return op


def name(id: str) -> ast.Name:
    return ast.Name(id, span=Span(0, 0))


def codes(text: str) -> list[str]:
    with pytest.raises(QpError) as error:
        lowered(text)
    return [diagnostic.code for diagnostic in error.value.diagnostics]


@pytest.mark.parametrize(
    ("end", "value", "returns"),
    [
        ("vote answer", name("answer"), "text"),
        ("vote score", name("score"), "float"),
        ("vote answer | best by score", name("text"), "text"),
        ("return answer", name("answer"), "text"),
        ("return tokens", name("tokens"), "int"),
    ],
)
def test_what_a_program_gives_back(end: str, value: ast.Expr, returns: str) -> None:
    program = lowered(START + end)
    assert last(program).value == value
    assert program.returns == returns


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        ("1 + 2", "int"),
        ("1 / 2", "float"),
        ("tokens % 2", "int"),
        ("score * 2", "float"),
        ("max(tokens)", "int"),
        ("mean(tokens)", "float"),
        ("min(1, 2.5)", "float"),
        ("len(text)", "int"),
        ("text + answer", "text"),
        ('"{answer}: {score}"', "text"),
        ("answer == none", "bool"),
        ("all(finished) and not finished", "bool"),
        ("text < answer", "bool"),
        ("none", "none"),
    ],
)
def test_types_of_expressions(value: str, returns: str) -> None:
    assert lowered(START + f"return {value}").returns == returns


def test_defaults_and_best() -> None:
    program = lowered("chat user=problem | generate llm | best by logprob")
    generate, best = chain(program)[2:4]
    assert isinstance(generate, ops.Generate)
    assert isinstance(best, ops.TopK)
    assert (generate.n, generate.temperature) == (ast.Literal(1, span=Span(0, 0)), ast.Literal(1.0, span=Span(0, 0)))
    assert (generate.stop, generate.max_tokens) == (None, None)
    assert best.k == ast.Literal(1, span=Span(0, 0))


def test_stages_are_numbered_in_reading_order() -> None:
    program = lowered("chat user=problem | repeat 2 { generate llm | score prm } | extract a = /x/ | vote a")
    assert [op.stage for op in chain(program)] == [-1, 0, 1, 4, 5, 6]
    repeat = chain(program)[2]
    assert isinstance(repeat, ops.Repeat)
    assert [repeat.body.op(node).stage for node in repeat.body.order()] == [1, 2, 3]


def test_columns_follow_the_stages() -> None:
    program = lowered("chat user=problem | repeat 2 { generate llm | score prm into q } | extract answer = /x/")
    columns = [list(program.plan.columns(node)) for node in program.plan.order()]
    assert columns[0] == []
    assert columns[1] == ["text", "step", "finish", "finished", "logprob", "tokens", "group"]
    assert columns[2][-1] == "q"
    assert columns[3][-2:] == ["q", "answer"]
    assert program.score_column == "q"


def test_models_in_order_of_use() -> None:
    program = lowered('chat user=problem | generate llm | score prm | generate "a/b" | score "c/d" into e')
    assert list(program.models.items()) == [
        ("llm", "zoo/counting"),
        ("prm", "zoo/counting-prm"),
        ("a/b", "a/b"),
        ("c/d", "c/d"),
    ]
    assert program.score_column == "e"


def test_until_may_read_what_the_body_makes() -> None:
    lowered("chat user=problem | repeat 3 until max(score) > 0.9 { generate llm | score prm }")
    assert codes("chat user=problem | repeat 3 { keep 1 by score | generate llm | score prm }") == ["QP218", "QP203"]


def test_a_left_out_line_excuses_what_it_may_have_made() -> None:
    assert codes("chat user=problem | generate llm | extrct a = /x/ | vote a") == ["QP110"]
    assert codes("chatt user=problem | generate llm | vote text") == ["QP110"]
    assert codes("chat user=problem | generate llm | vote a | extrct a = /x/") == ["QP203", "QP110"]


def test_warnings_come_with_the_program() -> None:
    text = 'program p(problem: text) { chat user=problem | generate "m" n=2 temperature=0 }'
    file = parse_file(Source("p.qp", text))
    assert [warning.code for warning in lower(file).warnings] == ["QP302"]
    assert [warning.code for warning in check(file)] == ["QP302"]


def test_numbers_of_any_size() -> None:
    program = lowered(
        "chat user=problem | generate llm | keep " + "9" * 300 + " by logprob | repeat 1000000 { generate llm }"
    )
    assert plan(program).ops[-1].rows == 1


def test_greedy_twin() -> None:
    program = lowered(
        'chat user=problem | repeat 9 { generate llm n=4 stop="x" max_tokens=9 | score prm } | best by score'
        " | extract answer = /x/ | return answer"
    )
    twin = greedy_of(program)
    assert twin is not None
    kinds = [type(op).__name__ for op in chain(twin)]
    assert kinds == ["Start", "SetContext", "Generate", "Extract", "Return"]
    generate = chain(twin)[2]
    assert isinstance(generate, ops.Generate)
    assert (generate.stop, generate.max_tokens, generate.stage) == (None, None, 2)
    assert (twin.score_column, list(twin.models)) == (None, ["llm"])
    plan(twin)


@pytest.mark.parametrize(
    ("text", "has_twin"),
    [
        ("chat user=problem | generate llm n=4 max_tokens=9 | vote text", True),
        ("chat user=problem | generate llm temperature=0 | return text", False),
        ("chat user=problem | generate llm temperature=0 n=1 | score prm | best by score", False),
        ("chat user=problem | generate llm n=4 | score prm | vote score", False),
        ("chat user=problem | generate llm n=4 | score prm | return mean(score)", False),
        ("chat user=problem | return problem", False),
        ("chat user=problem | generate llm", True),
    ],
)
def test_which_programs_have_a_greedy_twin(text: str, has_twin: bool) -> None:
    assert (greedy_of(lowered(text)) is not None) == has_twin


def test_a_whole_sample_keeps_its_bound() -> None:
    twin = greedy_of(lowered("chat user=problem | generate llm n=4 max_tokens=9 | vote text"))
    assert twin is not None
    generate = chain(twin)[2]
    assert isinstance(generate, ops.Generate)
    assert generate.max_tokens == ast.Literal(9, span=Span(0, 0))


def test_the_greedy_twin_of_a_conversation() -> None:
    program = lowered(
        'chat user=topic | generate llm n=2 into points | score prm | chat user="Write up {points}."'
        ' | repeat 3 { generate llm n=2 stop="x" as choice("a", "b") } | where finished | vote text'
    )
    twin = greedy_of(program)
    assert twin is not None
    kinds = [type(op).__name__ for op in chain(twin)]
    assert kinds == ["Start", "SetContext", "Generate", "SetContext", "Generate", "Return"]
    generates = [op for op in chain(twin) if isinstance(op, ops.Generate)]
    assert [op.into for op in generates] == ["points", None]
    assert generates[1].constraint == ops.Constraint("choice", '["a", "b"]', 'choice("a", "b")')
    assert greedy_of(replace(twin)) is None
    assert greedy_of(lowered("chat user=topic | branch { { generate llm n=2 } { generate slm } }")) is None
    scored = 'chat user=topic | generate llm n=2 | score prm | chat user="{score}" | generate llm'
    assert greedy_of(lowered(scored)) is None


FILE = """
model llm = "a"
program main(problem: text, wide: int = 3) -> text {
  chat system="Be brief."
  %s
  vote answer
}
program solve(question: text, n: int = 2, tail: text = "!") -> text {
  chat user="{question}{tail}"
  repeat 2 until all(finished) { generate llm n=n * 2 stop="x" }
  extract answer = /a/
  return answer
}
"""


@pytest.mark.parametrize(
    ("call", "pasted"),
    [
        (
            "call solve(problem, wide)",
            'chat user="{problem}!" | repeat 2 until all(finished) { generate llm n=wide * 2 stop="x" }'
            " | extract answer = /a/",
        ),
        (
            'call solve(tail=" {wide}?", question="Q: {problem}")',
            'chat user="Q: {problem} {wide}?" | repeat 2 until all(finished) { generate llm n=2 * 2 stop="x" }'
            " | extract answer = /a/",
        ),
    ],
)
def test_a_call_is_the_stages_in_its_place(call: str, pasted: str) -> None:
    """Numbers of stages included, so that samples are the same."""
    called, written = (lower(parse_file(Source("p.qp", FILE % text)), "main") for text in (call, pasted))
    assert described(called.plan) == described(written.plan)
    assert (called.models, called.returns) == (written.models, written.returns)


def test_the_result_of_a_call() -> None:
    program = lower(parse_file(Source("p.qp", FILE % "call solve(problem) into answer")), "main")
    assign = chain(program)[-3]
    assert isinstance(assign, ops.Assign)
    assert (assign.column, assign.value, assign.stage) == ("answer", name("answer"), 5)


def test_models_of_used_files_keep_their_ids(tmp_path: Path) -> None:
    lib = 'model llm = "a"\nuse "deep.qp"\nprogram p(q: text) { chat user=q | call d() }'
    (tmp_path / "lib.qp").write_text(lib)
    (tmp_path / "deep.qp").write_text('model slm = "b"\nprogram d() { chat user="x" | generate slm }')
    text = 'model slm = "c"\nuse "lib.qp"\nprogram main(q: text) { call p(q) | chat user=q | generate slm }'
    main, environment = parse_file(Source("main.qp", text)), Environment(Files(tmp_path))
    assert lower(main, environment=environment).models == {"b": "b", "slm": "c"}
    replaced = replace(environment, models={"slm": "d"})
    assert lower(main, environment=replaced).models == {"slm": "d"}


HELD = """
model llm = "m"
schema Item { name: text, price: float }
schema Order { id: int, items: [Item], paid: bool, note: text? }
program p(q: text) -> %s {
  chat user=q
  %s
}
"""


@pytest.mark.parametrize(
    ("returns", "stages", "parse"),
    [
        ("Order", "generate llm as Order", True),
        ("Order", "generate llm n=4 as Order | extract id = .id | keep 2 by id | return text", True),
        ("Order", "generate llm n=4 as Order | vote text", True),
        ("Order", 'generate llm as Order into first | chat user="{first}" | generate llm | return first', True),
        ("Order", "repeat 2 { generate llm as Order }", True),
        ("Order", "branch { { generate llm as Order } { generate llm temperature=0 as Order } }", True),
        ("text", "generate llm as Order", False),
        ("float", "generate llm as Order | extract price = .items[0].price | vote price", False),
        ("int", "generate llm as Order | extract id = .id | vote id", False),
        ("bool", "generate llm as Order | extract paid = .paid | vote paid", False),
        ("text", "generate llm as Order | extract items = .items | vote items", False),
    ],
)
def test_results_held_to_a_schema(returns: str, stages: str, parse: bool) -> None:
    program = lower(parse_file(Source("p.qp", HELD % (returns, stages))))
    assert (program.returns, last(program).parse) == (returns, parse)


@pytest.mark.parametrize(
    "stages",
    [
        "generate llm as Order | repeat 2 { chat user=q | generate llm }",
        "generate llm as Item",
        "generate llm as Order | chat user=q",
        "branch { { generate llm as Order } { generate llm } }",
        "generate llm as Order | extract id = .id | return id",
    ],
)
def test_results_not_held_to_it(stages: str) -> None:
    with pytest.raises(QpError) as error:
        lower(parse_file(Source("p.qp", HELD % ("Order", stages))))
    assert {found.code for found in error.value.diagnostics if found.severity == "error"} == {"QP214"}


def test_json_schema_of_a_schema() -> None:
    program = lower(parse_file(Source("p.qp", HELD % ("Order", "generate llm as Order"))))
    generate = chain(program)[2]
    assert isinstance(generate, ops.Generate) and generate.constraint is not None
    assert (generate.constraint.kind, generate.constraint.name) == ("json_schema", "Order")
    item = {"name": {"type": "string"}, "price": {"type": "number"}}
    assert json.loads(generate.constraint.source) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            "paid": {"type": "boolean"},
            "note": {"type": "string"},
        },
        "required": ["id", "items", "paid"],
        "additionalProperties": False,
        "$defs": {
            "Item": {
                "type": "object",
                "properties": item,
                "required": ["name", "price"],
                "additionalProperties": False,
            }
        },
    }


def test_formats_are_those_of_llguidance() -> None:
    for format in FORMATS:
        assert refusal("json_schema", json.dumps({"type": "string", "format": format})) is None


def test_calls_that_multiply_are_bounded() -> None:
    programs = [f"program p{i}() {{ call p{i + 1}() | call p{i + 1}() }}" for i in range(30)]
    text = "\n".join([*programs, 'program p30() { chat user="x" }'])
    start = time.perf_counter()
    with pytest.raises(QpError) as error:
        lower(parse_file(Source("p.qp", text)), "p0")
    assert {found.code for found in error.value.diagnostics} == {"QP310"}
    assert time.perf_counter() - start < 5


def test_rows_that_grow_slowly_are_counted_quickly() -> None:
    program = lowered(
        "chat user=problem | generate llm | repeat 1000000 { branch { { keep 1 by tokens } { where finished } } }"
    )
    start = time.perf_counter()
    assert plan(program).ops[-2].rows == 1_000_001
    assert time.perf_counter() - start < 1


def test_verify_finds_what_a_rewrite_may_break() -> None:
    program = lowered(START + "vote answer")
    params = {param.name for param in program.params}
    verify(program.plan, params)

    def broken(change: str) -> LogicalPlan:
        graph = nx.DiGraph(program.plan.graph)
        if change == "cycle":
            graph.add_edge("4", "1")
        elif change == "second producer":
            graph.add_edge("0", "3")
        elif change == "dead end":
            graph.remove_edge("3", "4")
        elif change == "lost column":
            graph.nodes["4"]["columns"] = {"text": "text"}
        elif change == "unknown column":
            graph.nodes["3"]["columns"] = {k: v for k, v in graph.nodes["3"]["columns"].items() if k != "answer"}
        elif change == "no return":
            graph.remove_node("5")
            return LogicalPlan(graph, "4")
        return LogicalPlan(graph, "5")

    for change in ("cycle", "second producer", "dead end", "lost column", "unknown column", "no return"):
        with pytest.raises(InvalidPlan):
            verify(broken(change), params)
    with pytest.raises(InvalidPlan):
        verify(program.plan, set())


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.qp")), ids=lambda path: path.stem)
def test_checking_is_quick(path: Path) -> None:
    file, environment = parse_file(Source(path.name, path.read_text("utf-8"))), Environment(Files(path.parent))
    check(file, environment)
    start = time.perf_counter()
    for _ in range(10):
        check(file, environment)
    assert (time.perf_counter() - start) / 10 < 0.02
