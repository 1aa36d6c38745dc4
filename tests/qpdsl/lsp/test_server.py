"""The language server, as an editor sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from qpdsl.grammar.ast.stage import STAGES
from tests.qpdsl.lsp.conftest import Editor, InEditor

HEAD = 'model llm = "zoo/counting"\nmodel prm = "zoo/counting-prm"\n\n'
PROGRAM = (
    HEAD
    + """\
program p(problem: text, n: int = 4) -> text {
  chat user=problem
  generate llm n=n
  score prm into quality
  best by quality
}
"""
)


def spot(found: lsp.Range) -> tuple[int, int, int, int]:
    return found.start.line, found.start.character, found.end.line, found.end.character


def test_mistakes_come_and_go_as_the_text_changes(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        assert await editor.open(PROGRAM) == []
        found = await editor.write(PROGRAM.replace("generate llm", "generate lmm").replace("by quality", "by score"))
        assert [(one.code, one.severity, spot(one.range)) for one in found] == [
            ("QP201", lsp.DiagnosticSeverity.Error, (5, 11, 5, 14)),
            ("QP203", lsp.DiagnosticSeverity.Error, (7, 10, 7, 15)),
        ]
        assert found[0].source == "qpdsl" and "did you mean `llm`?" in found[0].message
        assert found[1].related_information and found[1].related_information[0].location.range.start.line == 6
        assert await editor.write("\0") and await editor.write("program") and await editor.write("")
        assert await editor.write(PROGRAM) == []

    in_editor(act)


def test_a_long_text_is_checked_when_the_edits_have_come_to_rest(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        long = PROGRAM + "".join(PROGRAM.removeprefix(HEAD).replace("p(", f"p{i}(") for i in range(300))
        assert await editor.open(long) == []
        for word in ("l", "lm", "lmm"):
            editor.type(long.replace("generate llm", f"generate {word}", 1))
        (found,) = await editor.diagnostics()
        assert "`lmm`" in found.message
        assert editor.published.empty()

    in_editor(act)


def test_columns_are_counted_as_editors_do(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        (found,) = await editor.open(PROGRAM.replace("user=problem", 'system="🙂é" user=problm'))
        assert spot(found.range) == (4, 25, 4, 31)

    in_editor(act)


def test_a_mend_is_a_quick_fix(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(PROGRAM.replace("generate llm", "generate l‸mm"))
        (fix,) = await editor.fixes()
        assert fix.title == "did you mean `llm`?" and fix.edit and fix.edit.changes
        (edit,) = fix.edit.changes[editor.uri]
        assert (edit.new_text, spot(edit.range)) == ("llm", (5, 11, 5, 14))
        await editor.write("‸" + PROGRAM.replace("generate llm", "generate lmm"))
        assert await editor.fixes() == []

    in_editor(act)


def test_hover_shows_columns_and_names(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(PROGRAM.replace("score prm", "sc‸ore prm"))
        text = await editor.hover() or ""
        assert STAGES["score"].usage in text and "columns after this stage" in text
        assert "| quality | float |" in text and "| text | text |" in text
        for marked, shown in [
            ("by qua‸lity", "column `quality`: float\n\nmade on line 7"),
            ("n=‸n", "parameter `n`: int = 4"),
            ("generate l‸lm", 'model llm = "zoo/counting"'),
        ]:
            await editor.write(PROGRAM.replace(marked.replace("‸", ""), marked))
            assert shown in (await editor.hover() or "")
        await editor.write(PROGRAM.replace("quality\n}", "qualty\n  keep 1 by qual‸ity\n}"))
        assert "column `quality`: float" in (await editor.hover() or "")
        adapted = PROGRAM.replace('"zoo/counting"', '"zoo/counting" adapter="./one"', 1)
        await editor.write(adapted.replace("generate llm", "generate l‸lm"))
        assert 'model llm = "zoo/counting" adapter="./one"' in (await editor.hover() or "")
        await editor.write(PROGRAM + "\n‸")
        assert await editor.hover() is None

    in_editor(act)


def test_completion_of_stages_options_and_names(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(PROGRAM)
        for line, wanted, unwanted in [
            ("  ‸", {"generate", "score", "repeat"}, {"model", "quality"}),
            ("  gen‸", {"generate"}, {"model"}),
            ("  generate ‸", {"llm", "prm"}, {"generate", "n="}),
            ("  generate llm n=2 ‸", {"temperature=", "as", "via", "stop="}, {"n=", "llm"}),
            ("  generate llm n=‸", {"n", "problem", "tokens"}, {"late"}),
            ("  generate llm think=‸", {"on", "off", "n", "thought_tokens"}, {"late"}),
            ("  generate llm only=‸", {"thought", "answer"}, {"n", "quality"}),
            ("  generate llm as ‸", {"Person", "choice", "grammar"}, {"llm"}),
            ("  generate llm via ‸", {"filter", "contrast", "amortized"}, {"llm"}),
            ("  generate llm via contrast(‸", {"llm"}, {"filter"}),
            ("  generate llm n=2 ‸", {"until"}, {"confidence"}),
            ("  generate llm until ‸", {"confidence"}, {"llm", "quality"}),
            ("  generate llm until confidence(window=8) < ‸", {"n", "quality", "quantile"}, {"late"}),
            ("  score ‸", {"llm", "prm", "logprob", "judge"}, set()),
            ("  score prm reduce=‸", {"last", "mean"}, {"problem"}),
            ("  score prm ‸", {"reduce=", "given", "into"}, {"problem"}),
            ("  score prm given ‸", {"problem", "text", "quality"}, {"late"}),
            ("  score ‸", {"prob", "equal", "json", "passes"}, {"compare"}),
            ("  score prm of ‸", {"problem", "text", "quality"}, {"late"}),
            ('  score judge(llm, "x") as ‸', {"int"}, {"choice"}),
            ("  vote ‸", {"text", "quality"}, {"problem", "len"}),
            ("  vote text ‸", {"weight=", "decided="}, {"quality"}),
            ("  score ‸", {"entropy", "confidence", "certainty"}, set()),
            ("  extract last a = ‸", {"boxed"}, {"quality"}),
            ("  search ‸", {"puct", "ab_mcts"}, {"by", "quality"}),
            ("  search puct ‸", {"by", "simulations=", "per_round="}, {"quality"}),
            ("  search puct by ‸", {"quality", "tokens"}, {"late"}),
            ("  vote text equal=‸", {"number", "math"}, {"quality"}),
            ("  keep 2 by ‸", {"quality", "tokens", "n", "max"}, {"late"}),
            ("  keep 2 by qua‸", {"quality"}, {"late"}),
            ("  let ‸", set(), {"quality", "problem"}),
            ("  let m = ‸", {"quality", "problem", "count", "if"}, {"late"}),
            ("  let m = tokens - mean(‸", {"tokens", "quality"}, {"late"}),
            ("  let m = mean(tokens per ‸", {"group", "quality"}, {"problem", "len"}),
            ("  keep 2 by quality per ‸", {"group", "quality"}, {"problem"}),
            ("  repeat 3 until all(‸", {"finished"}, {"late"}),
            ('  chat user="{‸', {"problem", "quality"}, {"generate"}),
            ("  call ‸", {"p", "q"}, {"llm"}),
            ("  best ‸", {"by"}, {"n"}),
            ("  repeat ‸", {"n"}, {"until"}),
            ("  repeat 2 ‸", {"until"}, {"n"}),
            ("  split ‸", {"n"}, {"quality"}),
            ("  # gen‸", set(), {"generate"}),
            ('  chat user="gen‸', set(), {"generate", "problem"}),
        ]:
            text = PROGRAM.replace("  best by quality\n", f"{line}\n  score prm into late\n")
            text += "\nschema Person { name: text }\nprogram q(problem: text) -> text {\n  chat user=problem\n}\n"
            await editor.write(text)
            found = set(await editor.complete())
            assert wanted <= found and not unwanted & found, (line, found)

    in_editor(act)


def test_completion_outside_programs_and_in_blocks(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(PROGRAM)
        await editor.write(f"{PROGRAM}\n‸")
        assert set(await editor.complete()) == {"model", "schema", "program", "use"}
        await editor.write(f'model slm = "‸\n{PROGRAM}')
        assert {"zoo/counting", "zoo/counting-prm"} <= set(await editor.complete())
        await editor.write(f'model slm = "a" kind=qwen ‸\n{PROGRAM}')
        assert set(await editor.complete()) == {"adapter=", "think="}
        await editor.write(f"{PROGRAM}\nschema S {{\n  name: ‸")
        assert {"text", "choice", "int"} <= set(await editor.complete())
        await editor.write(f"{PROGRAM}\nprogram q(a: ‸")
        assert {"text", "int", "float", "bool", "choice", "messages", "model"} == set(await editor.complete())
        await editor.write(PROGRAM.replace("  best by quality\n", "  repeat 4 {\n    keep 1 by ‸"))
        found = await editor.complete()
        assert found["quality"] == "float" and found["n"] == "parameter: int"
        for block, here, not_here in [
            ("  repeat 4 {\n    extract a = /x/\n    keep 1 by ‸", "a", "b"),
            ("  branch {\n    { extract a = /x/ }\n    { extract b = /x/ | keep 1 by ‸ }\n  }", "b", "a"),
            ("  branch {\n    { extract a = /x/ }\n    { keep 1 by ‸ }\n  }", "quality", "a"),
        ]:
            await editor.write(PROGRAM.replace("  best by quality\n", f"{block}\n"))
            found = await editor.complete()
            assert here in found and not_here not in found

    in_editor(act)


def test_definitions_here_and_in_used_files(in_editor: InEditor, tmp_path: Path) -> None:
    (tmp_path / "common.qp").write_text(f"# Common.\n{HEAD}schema Note {{ title: text }}\n")
    text = PROGRAM.replace(HEAD, 'use "common.qp"\n') + "program q(problem: text) -> text {\n  call p(problem)\n}\n"

    async def act(editor: Editor) -> None:
        assert await editor.open(text) == []
        for marked, file, where in [
            ("generate l‸lm", "common.qp", (1, 6, 1, 9)),
            ('use "com‸mon', "common.qp", (0, 0, 0, 0)),
            ("user=prob‸lem", "p.qp", (1, 10, 1, 17)),
            ("best by qua‸lity", "p.qp", (4, 17, 4, 24)),
            ("call ‸p", "p.qp", (1, 8, 1, 9)),
            ("generate llm‸", "common.qp", (1, 6, 1, 9)),
        ]:
            await editor.write(text.replace(marked.replace("‸", ""), marked, 1))
            found = await editor.definition()
            assert found is not None, marked
            assert (found.uri, spot(found.range)) == ((tmp_path / file).as_uri(), where), marked
        await editor.write(text.replace("chat user", "ch‸at user", 1))
        assert await editor.definition() is None

    in_editor(act)


def test_formatting(in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(PROGRAM.replace("generate llm n=n", "generate   llm   n = n"))
        (edit,) = await editor.format()
        assert edit.new_text == PROGRAM
        await editor.write(PROGRAM)
        assert await editor.format() == []
        await editor.write(PROGRAM.replace("program p(", "program p(("))
        assert await editor.format() == []

    in_editor(act)


def test_registered_functions_are_known(in_editor: InEditor, tmp_path: Path) -> None:
    functions = tmp_path / "scorers.py"
    functions.write_text("import qpdsl\n\n@qpdsl.scorer\ndef brevity(text: str) -> float:\n    return -len(text)\n")
    text = PROGRAM.replace("score prm into", "score brevity into").replace('model prm = "zoo/counting-prm"\n', "")

    async def with_functions(editor: Editor) -> None:
        assert await editor.open(text) == []
        await editor.write(text.replace("score brevity into quality", "score ‸"))
        assert "brevity" in await editor.complete()

    async def without(editor: Editor) -> None:
        assert [one.code for one in await editor.open(text)] == ["QP201"]

    in_editor(with_functions, "--python", str(functions))
    in_editor(without)


TWO = (
    HEAD
    + """schema Person { name: text }

program p(problem: text, n: int = 4) -> text {
  chat user="{problem} 🙂é {n}"
  generate llm n=n
  score prm into quality
  where quality > mean(quality per group) or quality > 0.5
  let n2 = [quality, n][0]
  best by n2 + quality
}

program q(problem: text, size: int) -> Person {
  call p(problem, n=size) into note
  chat user=note
  generate llm as Person
  let longer = size + len(text)
  where longer > 3
}
"""
)


def after(text: str, edits: list[lsp.TextEdit]) -> str:
    """The text with edits that lie on lines of their own letters."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda edit: (edit.range.start.line, edit.range.start.character), reverse=True):
        line, start, same, end = spot(edit.range)
        assert line == same
        raw = lines[line].encode("utf-16-le")
        lines[line] = (raw[: 2 * start] + edit.new_text.encode("utf-16-le") + raw[2 * end :]).decode("utf-16-le")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("at", "name", "count"),
    [
        ("into qual‸ity", "worth", 6),
        ("let n2 = [quality‸", "worth", 6),
        ("(problem: text, si‸ze", "most", 3),
        ("let lon‸ger", "quality_", 2),
        ("é {n‸}", "samples", 5),
        ("call p(problem, n‸=", "samples", 5),
        ("(prob‸lem: text, n:", "question", 2),
        ("score pr‸m", "judge", 2),
        ("program ‸p(", "solve", 2),
        ("call p‸(", "solve", 2),
        ("as Pers‸on", "Human", 3),
    ],
)
def test_a_name_is_found_and_changed_wherever_it_means_the_same(
    at: str, name: str, count: int, in_editor: InEditor
) -> None:
    async def act(editor: Editor) -> None:
        assert await editor.open(TWO.replace(at.replace("‸", ""), at, 1)) == []
        found = await editor.references()
        edits = await editor.rename(name)
        assert len(found) == len(edits) == count
        assert sorted(map(spot, (one.range for one in found))) == sorted(map(spot, (edit.range for edit in edits)))
        assert await editor.write(after(TWO, edits)) == []
        old = at.replace("‸", "")
        assert after(TWO, edits).count(name) == count and old in TWO

    in_editor(act)


@pytest.mark.parametrize(
    ("at", "name", "why"),
    [
        ("into qual‸ity", "n2", "is taken"),
        ("into qual‸ity", "text", "cannot be a name here"),
        ("into qual‸ity", "by", "cannot be a name here"),
        ("into qual‸ity", "two words", "cannot be a name here"),
        ("‸generate llm n", "x", "there is no name here"),
    ],
)
def test_a_name_that_would_not_do_is_refused(at: str, name: str, why: str, in_editor: InEditor) -> None:
    async def act(editor: Editor) -> None:
        await editor.open(TWO.replace(at.replace("‸", ""), at, 1))
        with pytest.raises(JsonRpcException, match=why):
            await editor.rename(name)

    in_editor(act)
