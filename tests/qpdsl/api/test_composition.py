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


a, b = (qp.col["a"], qp.col["b"])
VALUES: list[tuple[Callable[[], Any], str]] = [
    (lambda: qp.count(a, per=a) / qp.count(), "count(a per a) / count()"),
    (lambda: x - qp.mean(x, per="group"), "x - mean(x per group)"),
    (lambda: qp.std(x) + qp.sum(x) + qp.max(x, per=b), "std(x) + sum(x) + max(x per b)"),
    (lambda: qp.quantile(x, 0.9) + qp.quantile(x, 0.5, per=b), "quantile(x, 0.9) + quantile(x, 0.5 per b)"),
    (lambda: qp.if_(qp.any(flag), qp.first(a), "no"), 'if(any(flag), first(a), "no")'),
    (lambda: qp.round(qp.sqrt(qp.abs(x)), 2), "round(sqrt(abs(x)), 2)"),
    (lambda: qp.log(qp.float(a)) + qp.exp(qp.int(x)), "log(float(a)) + exp(int(x))"),
    (lambda: qp.lower(qp.strip(a)) + qp.upper(qp.text(x)), "lower(strip(a)) + upper(text(x))"),
    (lambda: qp.contains(a, "x") & (qp.len(a) > 3), 'contains(a, "x") and len(a) > 3'),
    (lambda: qp.count() - qp.rank(x, per=b) + qp.number(), "count() - rank(x per b) + number()"),
    (lambda: qp.median(x) + qp.max(b["sizes"]), "median(x) + max(b.sizes)"),
    (lambda: qp.sort(qp.lines(a))[qp.number() - 1 :][0], "sort(lines(a))[number() - 1:][0]"),
    (lambda: b["sizes"][qp.int(x)], "b.sizes[int(x)]"),
    (lambda: qp.replace(qp.split(a, ",")[-1], "é", "e")[:2], 'replace(split(a, ",")[-1], "é", "e")[:2]'),
    (lambda: qp.join([a, "c"], ", "), 'join([a, "c"], ", ")'),
    (lambda: {"chosen": a, "rest": [b["name"], a]}, "{ chosen: a, rest: [b.name, a] }"),
    (lambda: [b["sizes"][-1], 1.5], "[b.sizes[-1], 1.5]"),
    (lambda: f"{b['name']}: {a}", '"{b.name}: {a}"'),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_values(value: Callable[[], Any], text: str) -> None:
    def stages(rows: qp.Rows) -> None:
        rows.let("a", qp.col.text)
        rows.let("b", {"name": "n", "sizes": [1, 2]})
        rows.let("found", value())

    assert composed(stages).split("\n")[-1] == f"let found = {text}"


def test_thoughts() -> None:
    thinker = qp.model("zoo/counting-thinker", name="thinker")

    @qp.program
    def p(q: str, budget: int = 8, effort: str = "off") -> str:
        rows = qp.chat(user=q)
        rows.generate(thinker, think=effort, max_tokens=4)
        rows.chat(user=q)
        rows.generate(thinker, n=2, think=budget, only="thought", max_tokens=4)
        rows.score(qp.confidence(4), of=qp.col.thought, into="sure")
        rows.generate(thinker, only="answer")
        rows.score(qp.entropy, of=qp.col.text, into="open")
        rows.where(qp.col.thought_tokens > 0)
        with rows.ask():
            qp.chat(user=qp.col.thought).generate(thinker, think=False, into="again")
        rows.chat(user=q).generate(thinker, think=True)
        return qp.col.thought

    for stage in (
        "generate thinker max_tokens=4 think=effort", "generate thinker n=2 max_tokens=4 think=budget only=thought",
        "score confidence(window=4) of thought into sure", "generate thinker only=answer",
        "score entropy of text into open", "where thought_tokens > 0", "generate thinker think=on", "return thought",
    ):  # fmt: skip
        assert stage in body(p).split("\n")
    assert "generate thinker think=off into again" in body(p)
    result = p.run("3 + 4 = ?")
    assert result.thought == result.value == result.candidates[0].thought == result.rows[0]["thought"]
    assert p.plan.physical.models == {"thinker": "zoo/counting-thinker"}
    assert isinstance(result.thought, str) and result.thought
    with pytest.raises(qp.QpError, match="QP129"):
        composed(lambda rows: rows.generate(llm, only="reasoning"))  # type: ignore[arg-type]


def test_sampling_data() -> None:
    @qp.program
    def p(q: str, sure: float = 0.9, n: int = 4) -> str:
        rows = qp.chat(user=q)
        with rows.search("puct", by=qp.col.score + 1, simulations=n, c=0.5, per_round=2):
            rows.generate(llm, stop="\n")
            rows.score(qp.logprob)
        rows.score(qp.entropy, into="unsure")
        rows.score(qp.confidence(n), reduce="last", into="tail")
        rows.score(qp.certainty, reduce="min", into="least")
        rows.score(qp.logprob, reduce="min", into="worst")
        rows.extract("all_boxes", qp.boxed, which="all")
        answer = rows.extract("a", r"\d+", which="last")
        return rows.vote(answer, decided=sure)

    stages = body(p)
    assert "search puct by score + 1 simulations=n c=0.5 per_round=2 {" in stages
    for stage in (
        "score entropy into unsure", "score confidence(window=n) reduce=last into tail",
        "score certainty reduce=min into least", "score logprob reduce=min into worst",
        "extract all all_boxes = boxed", r"extract last a = /\d+/", "vote a decided=sure",
    ):  # fmt: skip
        assert stage in stages.split("\n")


def test_a_search_in_python_says_what_is_wrong() -> None:
    def wrong(message: str, **options: Any) -> None:
        with pytest.raises(qp.QpError, match=message):
            composed(lambda rows: rows.search(**options))

    wrong("`method` is one of `puct`, `ab_mcts` or `ab_mcts_m`", method="mcts", by=1, simulations=2)
    wrong("finds out by itself", method="ab_mcts", by=1, simulations=2, c=1)


def test_a_search_that_chooses_its_model() -> None:
    @qp.program
    def p(q: str) -> str:
        rows = qp.chat(user=q)
        options: dict[str, Any] = {"rollout": "sampled", "prior": "beta", "arms": "thompson"}
        with rows.search("ab_mcts", by=1, simulations=2, **options), rows.branch() as branch:
            for temperature in (0.2, 1.0):
                with branch.arm():
                    rows.generate(llm, stop="\n", temperature=temperature)
        rows.best(by=qp.col.value)
        return rows.extract("a", r"\d+")

    assert "search ab_mcts by 1 simulations=2 rollout=sampled prior=beta arms=thompson {" in body(p)


def test_a_column_before_the_context() -> None:
    @qp.program
    def p(q: str, n: int = 2) -> None:
        more = qp.let("more", n + 1)
        qp.chat(user=f"{more} answers to {q}").generate(llm)

    assert body(p).split("\n")[:2] == ["let more = n + 1", 'chat user="{more} answers to {q}"']


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


def test_conversations() -> None:
    @qp.program
    def p(q: str, history: qp.Messages) -> str:
        rows = qp.chat(("user", "1 + 1?"), ("assistant", "2"), messages=history, user=q, assistant="So ")
        rows.generate(llm, stop=["a", qp.regex(r"b+/c"), q])
        rows.say(f"Wait, {q}")
        rows.generate(llm, stop=qp.regex(r"\d\D"))
        with rows.ask():
            rows.chat(user=f"Check: {qp.col.text}")
            rows.generate(llm, into="critique")
        return qp.col.critique

    assert body(p).split("\n") == [
        'chat user="1 + 1?" assistant="2" messages=history user=q assistant="So "',
        r'generate llm stop=["a", /b+\/c/, q]',
        'say "Wait, {q}"',
        r"generate llm stop=/\d\D/",
        "ask {",
        '  chat user="Check: {text}"',
        "  generate llm into critique",
        "}",
        "return critique",
    ]


def test_ways_to_decode() -> None:
    @qp.program
    def p(q: str, rows_at_once: int = 4) -> str:
        rows = qp.chat(user=q)
        rows.generate(llm, via=qp.filter("zoo/counting-mini", 0.9, by="margin", rows=rows_at_once, wait=0.5), stop="x")
        rows.generate(llm, via=qp.filter("zoo/counting-mini", share=0.3), stop="x")
        rows.generate(llm, via=qp.contrast("zoo/counting-mini", 0.1, beta=rows_at_once), stop="x")
        rows.generate(llm, via=qp.contrast("zoo/counting-mini"), stop="x")
        rows.generate(llm, draft=qp.early_exit("heads", tokens=3))
        rows.generate(llm, until=qp.confidence(window=8) < rows_at_once + 1.5)
        rows.generate(llm, until=qp.confidence() < 4)
        return qp.col.text

    assert body(p).split("\n")[1:8] == [
        'generate llm stop="x" via filter("zoo/counting-mini", 0.9, by=margin, rows=rows_at_once, wait=0.5)',
        'generate llm stop="x" via filter("zoo/counting-mini", share=0.3)',
        'generate llm stop="x" via contrast("zoo/counting-mini", 0.1, beta=rows_at_once)',
        'generate llm stop="x" via contrast("zoo/counting-mini")',
        'generate llm draft early_exit("heads", tokens=3)',
        "generate llm until confidence(window=8) < rows_at_once + 1.5",
        "generate llm until confidence < 4",
    ]


@pytest.mark.parametrize("until", [qp.entropy < 1, 0.5, qp.confidence(8)])
def test_a_row_is_ended_by_its_confidence_alone(until: Any) -> None:
    with pytest.raises(qp.QpError, match=r"`until` takes `qp.confidence\(…\) < bar`"):

        @qp.program
        def p(q: str) -> str:
            qp.chat(user=q).generate(llm, until=until)
            return qp.col.text


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


def test_an_arm_may_be_empty() -> None:
    def stages(rows: qp.Rows) -> None:
        with rows.branch() as branch:
            with branch.arm():
                pass
            with branch.arm():
                rows.split(2)

    assert composed(stages).split("\n") == ["branch {", "  {}", "  { split 2 }", "}"]


def test_verifiers() -> None:
    class Point(BaseModel):
        x: int

    def stages(rows: qp.Rows) -> None:
        rows.score(prm, of=qp.col.q, given="What?", into="a")
        rows.score(qp.judge(llm, f"Right? {qp.col.text}", as_=(1, 5)), reduce="expected", into="b")
        rows.score(qp.prob(llm, f"Right? {qp.col.text}", "Yes", f"No, {qp.col.q}"), into="c")
        rows.score(qp.likelihood(llm, "What?", qp.col.q), reduce="mean", into="l")
        rows.score(qp.equal(qp.col.text, qp.col.q, by="number"), into="d")
        rows.score(qp.valid_json(), of=qp.col.step, into="e")
        rows.score(qp.valid_json(Point), into="f")
        rows.score(qp.passes(qp.col.q, timeout=2), into="g")
        rows.extract("why", qp.failure, qp.col.q, timeout=2)
        rows.order(by=qp.compare(llm, lambda a, b: f"A {a.text} B {b.text}"))
        rows.keep(3, by=qp.compare(llm, lambda a, b: f"A {a.text} B {b.text}"), per="group")
        rows.best(
            by=qp.compare(llm, lambda a, b: f"{qp.col.q} A {a.text} B {b['e']}", both=False), per="group", else_=""
        )

    assert composed(stages).split("\n") == [
        'score prm of q given "What?" into a',
        'score judge(llm, "Right? {text}") as int(1..5) reduce=expected into b',
        'score prob(llm, "Right? {text}", "Yes", "No, {q}") into c',
        'score likelihood(llm, "What?", "{q}") reduce=mean into l',
        "score equal(text, q, by=number) into d",
        "score json of step into e",
        "score json(Point) into f",
        "score passes(q, timeout=2) into g",
        "extract why = failure(q, timeout=2)",
        'order by compare(llm, "A {a.text} B {b.text}")',
        'keep 3 by compare(llm, "A {a.text} B {b.text}") per group',
        'best by compare(llm, "{q} A {a.text} B {b.e}", both=false) per group else ""',
    ]
    with pytest.raises(qp.QpError, match=r"the question of `qp\.compare` is made of two rows"):
        composed(lambda rows: rows.best(by=qp.compare(llm, "Which is better?")))  # type: ignore[arg-type]
    with pytest.raises(qp.UsageError, match=r"`qp\.judge` takes a scale or `as_`, one of them"):
        qp.judge(llm, "Right?")


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


def test_what_a_program_permits_of_servers() -> None:
    @qp.program(within=qp.recorded)
    def p(q: str) -> str:
        return qp.chat(user=q).generate(llm)

    assert "-> text within recorded {" in str(p)


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


def test_rows_that_are_ordered_joined_and_looped_over() -> None:
    def stages(rows: qp.Rows) -> None:
        rows.generate(llm, n=1 + qp.col.group, temperature=0.3 + 0.2 * qp.col.group)
        rows.distinct(by=qp.col.text, per=qp.col.group)
        rows.first(k, per=qp.col.group).first()
        rows.order(by=-qp.col.tokens)
        rows.best(by=qp.col.logprob, per=qp.col.group)
        rows.vote(qp.col.step, per=qp.col.group)
        rows.split(4, by=qp.col.logprob, temperature=0.2, per=qp.col.group)
        with rows.if_(qp.col.tokens > 3):
            rows.where(flag)
        with rows.else_(), rows.if_(flag):
            rows.order(by=qp.col.tokens)
        with rows.each("item", ["a", "b"]) as item:
            rows.where(item != "b")
        with rows.each("step", ".steps[0].parts"):
            rows.keep(k, by=x)
        rows.join("every", f"{qp.col.i}. {qp.col.text}", sep=" ", per=item)
        rows.join("all", qp.col.every)

    assert (
        composed(stages)
        == dedent(
            """
        generate llm n=1 + group temperature=0.3 + 0.2 * group
        distinct by text per group
        first k per group
        first
        order by -tokens
        best by logprob per group
        vote step per group
        split 4 by logprob temperature=0.2 per group
        if tokens > 3 {
          where flag
        } else if flag {
          order by tokens
        }
        each item in ["a", "b"] {
          where item != "b"
        }
        each step in .steps[0].parts {
          keep k by x
        }
        join every = "{i}. {text}" sep=" " per item
        join all = every
        """
        ).strip()
    )


def test_an_else_stands_right_behind_its_if() -> None:
    def after_another_stage(rows: qp.Rows) -> None:
        with rows.if_(flag):
            rows.where(flag)
        rows.order(by=qp.col.tokens)
        with rows.else_():
            rows.where(flag)

    with pytest.raises(qp.QpError, match="`else_` stands right after the block of an `if_`"):
        composed(after_another_stage)
    with pytest.raises(qp.QpError, match="a JSON path is written"):
        composed(lambda rows: rows.each("x", ".a b"))


def test_a_budget_is_an_amount_or_a_share_of_right_answers() -> None:
    def composed_with(budget: Any) -> str:
        @qp.program(budget=budget)
        def p(q: str) -> str:
            rows = qp.chat(user=q).generate(llm, n=qp.auto(2, 4))
            return rows.extract("a", r"(\d+)").vote(qp.col.a)

        return str(p).split("\n\n")[-1].partition(" {")[0].partition(" within ")[2]

    assert composed_with({"tokens": 2000}) == "budget(tokens=2000)"
    assert composed_with({"accuracy": 0.9}) == "accuracy(0.9)"
    both = {"accuracy": 0.9, "delta": 0.05, "cost": 0.02}
    assert composed_with(both) == "accuracy(0.9, delta=0.05) or cost(0.02)"
    for refused in (
        {},
        {"delta": 0.1},
        {"delta": 0.1, "tokens": 5},
        {"tokens": 5, "cost": 1},
        {"accuracy": 0.9, "x": 1},
    ):
        with pytest.raises(qp.QpError, match="QP142"):
            composed_with(refused)
    for outside in ({"accuracy": 1}, {"accuracy": 0.9, "delta": 0.0}, {"accuracy": 0.9, "tokens": 0}):
        with pytest.raises(qp.QpError, match="QP301"):
            composed_with(outside)


def test_a_program_calls_itself_so_deep() -> None:
    @qp.program
    def solve(problem: str) -> str:
        rows = qp.chat(user=problem)
        part = rows.generate(llm, n=2, into="part", max_tokens=4)
        result = rows.call_into("result", qp.itself(depth=2), part)
        return rows.join("tree", f"{part}: [{result}]")

    assert "call solve(part) into result depth=2\n" in body(solve)
    text = qp.parse(str(solve))
    runs = [program.run("Mia has 3 boxes.") for program in (solve, text)]
    assert runs[0].rows == runs[1].rows
    assert runs[0].rows[0]["tree"].count(": [none]") == 2**3


def test_a_program_that_names_itself_says_how_deep() -> None:
    with pytest.raises(qp.QpError, match=r"`without` → `without`") as caught:

        @qp.program
        def without(problem: str) -> str:
            rows = qp.chat(user=problem)
            rows.call_into("result", without, problem)
            return rows.generate(llm)

    [error] = caught.value.diagnostics
    assert caught.value.source.text[error.span.start : error.span.end] == "without"
    for depth in (0, 65, True, "2"):
        with pytest.raises(qp.QpError, match="from 1 to 64"):
            composed(lambda rows, depth=depth: rows.call_into("x", qp.itself(depth=depth), "it"))
