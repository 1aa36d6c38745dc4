"""Every stage and expression that Python can write, against the text that it prints as."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

import qpdsl as qp

llm = qp.model("zoo/counting")
prm = qp.model("zoo/counting-prm")
mini = qp.model("zoo/counting-mini")
pytestmark = pytest.mark.filterwarnings("ignore::qpdsl.api.program.QpWarning")


def body(program: qp.Program[..., Any]) -> str:
    """The stages of a program's text."""
    text = str(program)
    return dedent(text[text.rindex("program ") :].partition("\n")[2].rpartition("}")[0]).strip()


def composed(stages: Callable[[qp.Rows], object]) -> str:
    """The text of stages that stand behind a first `generate`."""

    @qp.program
    def p(q: str, k: int = 2, x: float = 0.5, flag: bool = True) -> None:
        rows = qp.chat(user=q)
        rows.generate(llm)
        stages(rows)

    lines = body(p).split("\n")
    assert lines[:2] == ["chat user=q", "generate llm"]
    return "\n".join(lines[2:])


k: Any = qp.col.k
x: Any = qp.col.x
flag: Any = qp.col.flag
EXPRESSIONS: list[tuple[Any, str]] = [
    (qp.col.tokens + 1 > k * 2, "tokens + 1 > k * 2"),
    (1 - x < (qp.col.logprob - 2) / 3, "1 - x < (logprob - 2) / 3"),
    (qp.col.tokens % 2 == 0, "tokens % 2 == 0"),
    (-qp.col.logprob >= -1.5, "-logprob >= -1.5"),
    ((qp.col.finish == "eos") | ~qp.col.finished & flag, 'finish == "eos" or not finished and flag'),
    (qp.not_(qp.col.finished), "not finished"),
    (3 == k, "k == 3"),  # noqa: SIM300
    (qp.col["text"] != "", 'text != ""'),
    ("so " + qp.col.text == "so", '"so " + text == "so"'),
    (qp.col.finish != qp.none, "finish != none"),
    (qp.col.finished == True, "finished == true"),  # noqa: E712
]


@pytest.mark.parametrize(("condition", "text"), EXPRESSIONS, ids=[text for _, text in EXPRESSIONS])
def test_expressions(condition: bool, text: str) -> None:
    assert composed(lambda rows: rows.where(condition)) == f"where {text}"


def test_functions() -> None:
    assert composed(lambda rows: rows.where(qp.len(qp.col.text) > qp.min(k, 3))) == "where len(text) > min(k, 3)"
    assert composed(lambda rows: rows.where(qp.matches(qp.col.text, "a/b\n"))) == r"where text matches /a\/b\n/"

    @qp.program
    def p(q: str) -> float:
        rows = qp.chat(user=q)
        with rows.repeat(2, until=qp.any(qp.col.finished) | (qp.mean(qp.col.logprob) < -9)):
            rows.generate(llm, stop="\n")
        return qp.max(qp.col.logprob)

    assert "repeat 2 until any(finished) or mean(logprob) < -9 {" in body(p)
    assert body(p).endswith("return max(logprob)")


def test_texts() -> None:
    @qp.program
    def p(q: str, topic: str, n: int = 2) -> str:
        rows = qp.chat(("system", "Be {brief}."), ("user", f"{n} things"), assistant="ok", user=f'On "{topic}": {q!s}')
        points = rows.generate(llm, into="points")
        rows.chat(user="{}%s" % points + "\\{n}\n")  # noqa: UP031
        return rows.generate(llm, stop=f"{topic}\n")

    assert body(p) == "\n".join(
        [
            r'chat system="Be \{brief}." user="{n} things" assistant="ok" user="On \"{topic}\": {q}"',
            "generate llm into points",
            r'chat user="{}{points}\\\{n}\n"',
            r'generate llm stop="{topic}\n"',
        ]
    )


def test_stages() -> None:
    @qp.scorer
    def short(text: str) -> float:
        return -len(text)

    @qp.extractor
    def first(text: str) -> int | None:
        return None

    def stages(rows: qp.Rows) -> None:
        rows.score(prm, reduce="min", into="low")
        rows.score(qp.logprob, reduce="mean", into="likely")
        rows.score(qp.judge(llm, f"Rate it. {qp.col.q}", (1, 5)), given=qp.col.q, into="rating")
        rows.score(short)
        rows.extract("a", r"(\d+)")
        rows.extract("b", ".items[0].name")
        rows.extract("c", qp.regex(".name"))
        number = rows.extract("d", first)
        rows.where(number > 3)
        rows.split(k)
        rows.keep(2, by=qp.col.low, per="group")
        rows.best(by=x * qp.col.likely)
        rows.vote("a", weight=qp.col.rating, equal="number")

    assert composed(stages).split("\n") == [
        "score prm reduce=min into low",
        "score logprob reduce=mean into likely",
        'score judge(llm, "Rate it. {q}", 1..5) given q into rating',
        "score short",
        r"extract a = /(\d+)/",
        "extract b = .items[0].name",
        "extract c = /.name/",
        "extract d = first",
        "where d > 3",
        "split k",
        "keep 2 by low per group",
        "best by x * likely",
        "vote a weight=rating equal=number",
    ]


def test_what_output_is_held_to(tmp_path: Path) -> None:
    (tmp_path / "digits.lark").write_text("start: /[0-9]+/\n")

    def given(as_: Any) -> str:
        text = composed(lambda rows: rows.generate(llm, as_=as_))
        # A long path stands on a line of its own.
        text = re.sub(r",\n\s*\)", ")", re.sub(r"\(\n\s*", "(", text))
        return " ".join(text.split()).removeprefix("generate llm as ")

    assert given(qp.choice("yes", 'n"o')) == r'choice("yes", "n\"o")'
    assert given(qp.regex("[ab]+")) == "/[ab]+/"
    assert given(qp.lark(tmp_path / "digits.lark")) == f'grammar("{tmp_path / "digits.lark"}")'
    assert re.fullmatch(r'grammar\("grammar-[0-9a-f]{8}\.lark"\)', given(qp.lark("start: /[0-9]+/\n")))
    assert given(qp.schema("Thing", {"type": "object", "properties": {"a": {"type": "integer"}}})) == "Thing"
    assert given({"type": "array", "items": {"type": "integer"}}) == "Answer"


class Address(BaseModel):
    street: str
    number: int | None = None


class Customer(BaseModel):
    name: str
    kind: Literal["new", "old"]
    homes: list[Address]
    note: Optional[str] = None  # noqa: UP045
    share: float = 0.5
    loyal: bool


class Node(BaseModel):
    children: list[Node]


class Wide(BaseModel):
    counts: dict[str, int]


class Searched(BaseModel):
    # JSON Schema searches for a pattern, the language holds the whole text to it.
    code: str = Field(pattern="a|^b")


class Large(BaseModel):
    id: int = Field(ge=0, le=2**63 - 1)


def declared(model: type[BaseModel]) -> str:
    @qp.program
    def p(q: str) -> None:
        qp.chat(user=q).generate(llm, as_=model)

    text = str(p)
    return text[text.index("schema ") : text.index("program ")].strip()


def test_a_pydantic_model_becomes_a_schema() -> None:
    assert declared(Customer) == dedent(
        """\
        schema Address {
          street: text
          number: int?
        }

        schema Customer {
          name: text
          kind: choice("new", "old")
          homes: [Address]
          note: text?
          share: float?
          loyal: bool
        }"""
    )


@pytest.mark.parametrize("model", [Wide, Searched])
def test_a_model_that_the_language_cannot_say_keeps_its_json_schema(model: type[BaseModel]) -> None:
    assert re.fullmatch(rf'schema {model.__name__} from "schema-[0-9a-f]{{8}}\.json"', declared(model))


def test_an_integer_that_llguidance_would_change_is_refused() -> None:
    with pytest.raises(qp.QpError) as refused:
        declared(Large)
    assert [diagnostic.code for diagnostic in refused.value.diagnostics] == ["QP285"]


def test_options_of_a_program() -> None:
    @qp.program(name="fast", within=qp.epsilon(1e-3), latency=0.8)
    def p(q: str) -> str:
        return qp.chat(user=q).generate(llm)

    assert p.name == "fast"
    assert "program fast(q: text) -> text within epsilon(0.001) prefer latency=0.8 {" in str(p)


def test_a_model_with_an_adapter_is_another_model() -> None:
    plain, tuned = qp.model("zoo/counting"), qp.model("zoo/counting", adapter=Path("lora"))
    unnamed = [qp.model("zoo/counting", adapter="./other")]

    @qp.program
    def p(q: str) -> str:
        rows = qp.chat(user=q)
        for each in (plain, tuned, unnamed[0]):
            rows.generate(each)
        return rows

    assert 'model tuned = "zoo/counting" adapter="lora"' in str(p)
    ids = ("zoo/counting", "zoo/counting adapter=lora", "zoo/counting adapter=./other")
    assert dict(p.logical.models) == {"plain": ids[0], "tuned": ids[1], "each": ids[2]}
    assert dict(qp.parse(str(p)).logical.models) == dict(p.logical.models)


@pytest.mark.parametrize(("id", "adapter", "why"), [("a", "", "cannot be empty"), ("a adapter=b", "c", "given twice")])
def test_an_adapter_that_cannot_be_is_refused(id: str, adapter: str, why: str) -> None:
    wrong = qp.model(id, adapter=adapter)

    def p(q: str) -> str:
        return qp.chat(user=q).generate(wrong)

    with pytest.raises(qp.QpError, match=why):
        str(qp.program(p))


def test_models_have_the_names_of_their_variables() -> None:
    mine = qp.model("zoo/counting")
    named = [qp.model("zoo/counting", name="chosen"), qp.model("zoo/counting-mini")]

    @qp.program
    def p(q: str) -> str:
        rows = qp.chat(user=q)
        for each in (mine, named[0]):
            rows.generate(each)
        return rows.generate(named[1])

    assert dict(p.logical.models) == {
        "mine": "zoo/counting",
        "chosen": "zoo/counting",
        "zoo/counting-mini": "zoo/counting-mini",
    }


def test_programs_call_programs() -> None:
    @qp.program
    def think(question: str, n: int = 2) -> str:
        rows = qp.chat(user=f"Think about {question}.")
        rows.generate(llm, n=n)
        return rows.vote(rows.extract("thought", r"(\w+)"))

    @qp.program
    def p(q: str) -> str:
        rows = qp.chat(user=q)
        rows.generate(llm)
        rows.call(think, "it")
        thought = rows.call_into("kept", think, question=q, n=3)
        rows.chat(user=f"So {thought}.")
        return rows.generate(llm)

    assert 'call think("it")\ncall think(question=q, n=3) into kept\nchat user="So {kept}."' in body(p)
    text = qp.parse(str(p), program="p")
    assert [op["text"] for op in text.explain("json")["operators"]] == [
        op["text"] for op in p.explain("json")["operators"]
    ]


def test_helpers_and_python_loops_compose_too() -> None:
    def ask(question: str, times: int) -> qp.Rows:
        rows = qp.chat(user=question)
        for _ in range(times):
            rows.generate(llm, stop="\n")
        return rows

    @qp.program
    def p(q: str) -> str:
        ask(q, 3)
        return qp.col.text

    assert body(p) == "chat user=q\n" + "\n".join(['generate llm stop="\\n"'] * 3)


def test_programs_call_programs_of_files(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    (tmp_path / "models.qp").write_text('model llm = "zoo/counting"')
    (tmp_path / "order.qp").write_text(
        'use "models.qp"\nschema Order from "order.json"\n'
        "program order(note: text) -> Order { chat user=note | generate llm as Order }\n"
    )
    order = qp.load(tmp_path / "order.qp")

    @qp.program
    def p(q: str) -> str:
        rows = qp.chat(user=q)
        rows.generate(mini)
        found = rows.call_into("found", order, note=q)
        rows.chat(user=f"Check {found}.")
        return rows.generate(mini)

    assert set(p.logical.models.values()) == {"zoo/counting", "zoo/counting-mini"}
    assert f'schema Order from "{tmp_path / "order.json"}"' in str(p)
    assert str(p) == str(qp.load(_written(tmp_path / "elsewhere.qp", str(p)), program="p"))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
