"""The tree of each construct: schemas, clauses, and the stages that take more than options."""

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from tests.support.grammar.trees import parsed

AT = Span(0, 0)
PLAIN = "program p() { split 2 }"


def stage(text: str) -> ast.Stage:
    return parsed(f"program p() {{\n{text}\n}}").programs[0].body[0]


def field_type(text: str) -> ast.TypeExpr:
    schema = parsed(f"schema S {{ x: {text} }}\n{PLAIN}").schemas[0]
    assert schema.type is not None
    return schema.type.fields[0].type


def name(id: str) -> ast.Name:
    return ast.Name(id, span=AT)


def number(value: int | float) -> ast.Literal:
    return ast.Literal(value, span=AT)


def model(id: str, *, quoted: bool = False) -> ast.ModelRef:
    return ast.ModelRef(id, quoted, span=AT)


def draft(model: ast.ModelRef, *, tokens: int | None = None, branches: int | None = None) -> ast.DraftClause:
    return ast.DraftClause("model", model, None, tokens, branches, span=AT)


def ref(id: str) -> ast.TypeRef:
    return ast.TypeRef(id, span=AT)


FIELD = ast.Field("a", ref("int"), span=AT, name_span=AT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Person", ref("Person")),
        ("int(0..150)", ast.RangeType("int", 0, 150, span=AT)),
        ("int(-3 .. )", ast.RangeType("int", -3, None, span=AT)),
        ("float(..1)", ast.RangeType("float", None, 1, span=AT)),
        ("float(0.5..1e3)", ast.RangeType("float", 0.5, 1000.0, span=AT)),
        ('text(max_length=40, format="email")', ast.TextType(max_length=40, format="email", span=AT)),
        ("text(pattern=/a,b/)", ast.TextType(pattern=ast.Regex("a,b", span=AT), span=AT)),
        ('choice("a", "",)', ast.ChoiceType(("a", ""), span=AT)),
        ("[[int]]", ast.ListType(ast.ListType(ref("int"), span=AT), span=AT)),
        ("{}", ast.RecordType((), span=AT)),
        ("[\n{ a: int\n}]", ast.ListType(ast.RecordType((FIELD,), span=AT), span=AT)),
    ],
)  # fmt: skip
def test_types(text: str, expected: ast.TypeExpr) -> None:
    assert field_type(text) == expected


@pytest.mark.parametrize("between", [", ", "\n", ",\n", "\n\n  # note\n", " # note\n", ",  # note\n"])
def test_fields_are_parted_by_lines_or_commas(between: str) -> None:
    text = "schema S { a: int, b: { c: text, d: [text] }?, e: bool }\n" + PLAIN
    assert parsed(text.replace(", ", between)) == parsed(text)


def test_declarations() -> None:
    file = parsed(f'use "other.qp"\nschema Order from "order.json"\n{PLAIN}')
    assert file.uses == (ast.Use("other.qp", span=AT),)
    assert file.schemas == (ast.Schema("Order", path="order.json", span=AT, name_span=AT),)


def test_clauses_of_a_program() -> None:
    program = parsed('program p()\n  draft "m"\n  prefer latency=1\n within epsilon(1e-3)\n{ split 2 }').programs[0]
    assert program.within == ast.Within("epsilon", 0.001, span=AT)
    assert program.prefer == ast.Prefer(1.0, span=AT)
    assert program.draft == draft(model("m", quoted=True))
    for written, seconds in {"2s": 2.0, " 9ms ": 0.009, "1.5min": 90.0}.items():
        program = parsed(f"{PLAIN[:11]} within deadline({written}) {PLAIN[11:]}").programs[0]
        assert program.deadline == ast.Deadline(seconds, span=AT)
    for level in ("exact", "replayable", "recorded"):
        assert parsed(f"{PLAIN[:11]} within {level} {PLAIN[11:]}").programs[0].within == ast.Within(level, span=AT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ['model m = "id" kind=qwen', 'model m = "id"\n  kind=qwen', 'model kind = "id" kind=qwen']
)
def test_kind_of_a_model(text: str) -> None:
    assert parsed(f"{text}\n{PLAIN}").models[0].kind == "qwen"


def test_adapter_of_a_model() -> None:
    (model,) = parsed(f'model m = "id" adapter="./one" kind=qwen\n{PLAIN}').models
    assert (model.id, model.kind, model.adapter) == ("id", "qwen", "./one")


@pytest.mark.parametrize(
    "clauses", ["like search_and_learn", "draft like\n like search_and_learn", "within loss(0.1) like search_and_learn"]
)
def test_like_is_a_word_only_in_a_head(clauses: str) -> None:
    text = f"program p(like: float) -> text {clauses} {{ keep 1 by like per like | extract like = /a/ }}"
    assert parsed(text).programs[0].like == ast.Like("search_and_learn", span=AT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("split 4", ast.Split(number(4), span=AT)),
        ("split 4 by score", ast.Split(number(4), name("score"), span=AT)),
        ("split n\n  by score\n  temperature=0.2", ast.Split(name("n"), name("score"), number(0.2), span=AT)),
        ("peek { split 2 }", ast.Peek((ast.Split(number(2), span=AT),), span=AT)),
        ("ask { split 2 }", ast.Ask((ast.Split(number(2), span=AT),), span=AT)),
        ("say a", ast.Say(name("a"), span=AT)),
        ("chat messages=h", ast.Chat((ast.Turn("messages", name("h"), span=AT),), span=AT)),
    ],
)
def test_stages_of_a_search(text: str, expected: ast.Stage) -> None:
    assert stage(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("as Person", {"target": ast.SchemaTarget("Person", span=AT)}),
        ("as choice", {"target": ast.SchemaTarget("choice", span=AT)}),
        (r"as /a\/b/", {"target": ast.Regex(r"a\/b", span=AT)}),
        ('as choice("yes", "no")', {"target": ast.ChoiceTarget(("yes", "no"), span=AT)}),
        ('as grammar("x.lark")', {"target": ast.GrammarTarget("x.lark", span=AT)}),
        ("via filter(slm, t)", {"via": ast.Filter(model("slm"), name("t"), span=AT)}),
        ('via filter("m", 0.9)', {"via": ast.Filter(model("m", quoted=True), number(0.9), span=AT)}),
        ("via filter(slm, 0.9, by=margin)", {"via": ast.Filter(model("slm"), number(0.9), "margin", span=AT)}),
        ("via filter(slm, 0.9, wait=0.5, rows=n)",
            {"via": ast.Filter(model("slm"), number(0.9), rows=name("n"), wait=number(0.5), span=AT)}),
        ("via filter(slm,\n by=entropy,\n share=s)",
         {"via": ast.Filter(model("slm"), None, "entropy", name("s"), span=AT)}),
        ("via contrast(slm)", {"via": ast.Contrast(model("slm"), span=AT)}),
        ("via contrast(slm, a, beta=2)", {"via": ast.Contrast(model("slm"), name("a"), number(2), span=AT)}),
        ("via amortized(0.5)", {"via": ast.Amortized(number(0.5), span=AT)}),
        ('via amortized(m, layer=12, rerank=8, head="f")',
         {"via": ast.Amortized(name("m"), number(12), number(8), "f", span=AT)}),
        ("via amortized(certify=1.5)", {"via": ast.Amortized(None, certify=number(1.5), span=AT)}),
        ("draft slm", {"drafts": draft(model("slm"))}),
        ("draft draft", {"drafts": draft(model("draft"))}),
        ("draft slm(tokens=6, branches=2)", {"drafts": draft(model("slm"), tokens=6, branches=2)}),
        ('draft "m"(tokens=3)', {"drafts": draft(model("m", quoted=True), tokens=3)}),
        ("draft none", {"drafts": ast.DraftClause("none", span=AT)}),
        ("draft early_exit", {"drafts": ast.DraftClause("early_exit", span=AT)}),
        ('draft ngram("t.txt", tokens=4)', {"drafts": ast.DraftClause("ngram", None, "t.txt", 4, span=AT)}),
        ('draft early_exit("folder")', {"drafts": ast.DraftClause("early_exit", None, "folder", span=AT)}),
        ('draft eagle("folder")', {"drafts": ast.DraftClause("eagle", None, "folder", span=AT)}),
        ("into draft draft into", {}),
        ("into c n=2\n  draft slm", {"into": name("c"), "n": number(2), "drafts": draft(model("slm"))}),
    ],
)  # fmt: skip
def test_clauses_of_generate(text: str, expected: dict[str, ast.Node]) -> None:
    if expected:
        assert stage(f"generate llm {text}") == ast.Generate(model("llm"), **expected, span=AT)  # type: ignore[arg-type]
    else:
        assert parse_file(Source("p.qp", f"program p() {{ generate llm {text} }}")).errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where finished", ast.Where(name("finished"), span=AT)),
        ("split g", ast.Split(name("g"), span=AT)),
        ("keep 1 by score\n per group", ast.Keep(number(1), name("score"), name("group"), span=AT)),
        ("first", ast.First(span=AT)),
        ("first per group", ast.First(per=name("group"), span=AT)),
        ("first k * 2\n per group", ast.First(ast.Binary("*", name("k"), number(2), span=AT), name("group"), span=AT)),
        (
            "let first = first(text)",
            ast.Let(name("first"), ast.Apply("first", (name("text"),), span=AT, name_span=AT), span=AT),
        ),
        ("vote a equal=math weight=w", ast.Vote(name("a"), name("w"), "math", span=AT)),
        ("score logprob into c reduce=min", ast.StepScore(model("logprob"), reduce="min", into=name("c"), span=AT)),
        ("score prm\n given q into c", ast.StepScore(model("prm"), given=name("q"), into=name("c"), span=AT)),
        ("extract x = find", ast.Extract(name("x"), name("find"), span=AT)),
        ("extract where = .where", ast.Extract(name("where"), ast.JsonPath(("where",), span=AT), span=AT)),
        ("call q()", ast.Call("q", span=AT, name_span=AT)),
    ],
)
def test_stages(text: str, expected: ast.Stage) -> None:
    assert stage(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b[0].c", ast.Path(name("a"), ("b", 0, "c"), span=AT)),
        ("a[-1]", ast.Path(name("a"), (-1,), span=AT)),
        ("[]", ast.ListLiteral((), span=AT)),
        ("[a,\n 4,]", ast.ListLiteral((name("a"), number(4)), span=AT)),
        ("count()", ast.Apply("count", (), span=AT, name_span=AT)),
        ("count(per a)", ast.Apply("count", (), name("a"), span=AT, name_span=AT)),
        ("mean(a per b)", ast.Apply("mean", (name("a"),), name("b"), span=AT, name_span=AT)),
        ("{a: 4, per_b: [{c: d}]}", None),
        ("list({by: a.as / 4})", ast.Apply("list", (ast.RecordLiteral((ast.RecordEntry("by", ast.Binary(
            "/", ast.Path(name("a"), ("as",), span=AT), number(4), span=AT), span=AT, name_span=AT),), span=AT),),
            span=AT, name_span=AT)),
        ("{\n a: 4 # four\n per_b: [\n{c: d}], }", None),
        ('"{ a } {a.b} {a [0]}"',
         ast.Template((name("a"), " ", ast.Path(name("a"), ("b",), span=AT), " {a [0]}"), span=AT)),
    ],
)  # fmt: skip
def test_values(text: str, expected: ast.Expr | None) -> None:
    def entry(name: str, value: ast.Expr) -> ast.RecordEntry:
        return ast.RecordEntry(name, value, span=AT, name_span=AT)

    inner = ast.ListLiteral((ast.RecordLiteral((entry("c", name("d")),), span=AT),), span=AT)
    expected = expected or ast.RecordLiteral((entry("a", number(4)), entry("per_b", inner)), span=AT)
    assert stage(f"let x = {text}") == ast.Let(name("x"), expected, span=AT)
    assert stage(f"return {text}") == ast.Return(expected, span=AT)


def test_a_judge() -> None:
    rubric = ast.Template(("Rate ", name("x")), span=AT)
    assert stage('score judge(llm, "Rate {x}", -1..5)') == ast.Judge(model("llm"), rubric, -1, 5, span=AT)


def test_what_a_model_is_asked() -> None:
    asked = ast.Template(("Right? ", name("x")), span=AT)
    assert stage('score judge(llm, "Right? {x}") as int(0..9) reduce=expected\n of a') == ast.Judge(
        model("llm"), asked, 0, 9, whole=True, reduce="expected", of=name("a"), span=AT
    )
    yes, no = (ast.Template((text,), span=AT) for text in ("Yes", "No"))
    assert stage('score prob(llm, "Right? {x}", "Yes", "No")') == ast.Prob(model("llm"), asked, (yes, no), span=AT)
    shown = ast.Template((ast.Path(name("a"), ("x",), span=AT),), span=AT)
    compared = ast.Tournament(model("llm"), shown, False, name("g"), span=AT)
    assert stage('best by compare(llm, "{a.x}", both=false) per g') == compared
    # Elsewhere it is a name as any other.
    assert stage("best by compare") == ast.Best(name("compare"), span=AT)


def test_a_call() -> None:
    arguments = (ast.Argument(None, name("a"), span=AT), ast.Argument("k", number(2), span=AT))
    assert stage("call q(a,\n k=2,) into c") == ast.Call("q", arguments, name("c"), span=AT, name_span=AT)


@pytest.mark.parametrize("between", [" ", "\n", "\n\n # note\n", ""])
def test_the_arms_of_a_branch(between: str) -> None:
    tree = stage(f"branch {{{between}{{ split 2 | split 3 }}{between}{{\nbranch {{ {{ split 4 }} }}\n}}{between}}}")
    two, three, four = (ast.Split(number(count), span=AT) for count in (2, 3, 4))
    assert tree == ast.Branch(((two, three), (ast.Branch(((four,),), span=AT),)), span=AT)


def test_parameters_of_a_pipeline() -> None:
    text = "chat user=q | split g | generate llm via filter(slm, t) into c | where flag and score > low"
    text += " | generate llm via amortized(m, layer=l)"
    text += ' | branch { { call p(x, k=y) into z } } | score judge(llm, "{rubric}", 1..5) given "{task}"'
    text += " | keep 1 by c per z"
    file = parse_pipeline(Source("-e", text))
    assert not file.errors
    assert [(param.name, param.type.name) for param in file.programs[0].params] == [
        ("q", "text"), ("g", "int"), ("t", "float"), ("flag", "bool"), ("low", "float"), ("m", "float"), ("l", "int"),
        ("x", "text"), ("y", "text"), ("rubric", "text"), ("task", "text"),
    ]  # fmt: skip


def test_a_slash_at_the_start_of_a_line_in_brackets_divides() -> None:
    assert stage("where (\n tokens / 2 > 1 and tokens\n / 3 > 1)") == stage("where (tokens / 2 > 1 and tokens / 3 > 1)")


def test_a_sample_stops_at_texts_and_regexes() -> None:
    written = stage(r"generate llm stop=/b\//")
    listed = stage(r"generate llm stop=[a, /b\//,]")
    assert isinstance(written, ast.Generate) and written.stop == ast.Regex(r"b\/", span=AT)
    assert isinstance(listed, ast.Generate)
    assert listed.stop == ast.ListLiteral((name("a"), ast.Regex(r"b\/", span=AT)), span=AT)
