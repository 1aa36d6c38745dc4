"""What lowering makes of a program: operators, columns, types, what it gives back."""

import time

import networkx as nx
import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.parse import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from qpdsl.planner import ops
from qpdsl.planner.baseline import greedy_of
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from qpdsl.planner.lower import check, lower
from qpdsl.planner.plan import plan
from qpdsl.planner.verify import InvalidPlan, verify

START = "chat user=problem | generate llm n=4 | score prm | extract answer = /x/ | "


def lowered(text: str) -> LogicalProgram:
    return lower(parse_pipeline(Source("-e", text)))


def chain(program: LogicalProgram) -> list[ops.Operator]:
    return [program.plan.op(node) for node in program.plan.order()]


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
        "chat user=problem | generate llm | keep " + "9" * 300 + " by logprob | repeat 10000000000 { generate llm }"
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


def test_lowering_is_quick() -> None:
    text = START + "vote answer"
    lowered(text)
    start = time.perf_counter()
    for _ in range(10):
        plan(lowered(text))
    assert (time.perf_counter() - start) / 10 < 0.05
