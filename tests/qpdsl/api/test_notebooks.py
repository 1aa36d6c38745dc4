"""What notebooks show: trees of plain HTML, escaped, without scripts; and what importing the package loads."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

import qpdsl as qp
from qpdsl.api import notebook
from qpdsl.api.candidate import Candidate
from tests.support.api.shipped import PROGRAMS
from tests.support.paths import ROOT

HEAVY = {"torch", "transformers", "numpy", "pydantic", "llguidance", "networkx", "lark"}
VOID = {"br"}


class Outline(HTMLParser):
    """The tags of a page, and that they pair."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.open.append(tag)
        # Nothing that runs, and nothing that is loaded.
        assert not {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self.open else ""


def outline(html: str) -> Outline:
    tree = Outline()
    tree.feed(html)
    assert not tree.open
    return tree


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_is_a_tree(name: str) -> None:
    program = PROGRAMS[name]
    tree = outline(program.plan._repr_html_())
    assert set(tree.seen) == {"div", "details", "summary", "span"}
    for line in program.explain().splitlines()[1:-3]:
        words = line.strip("│├└ ").removeprefix("from ").removesuffix(": the rows as they are").split("   ")[0]
        assert words in tree.text
    page = outline(program._repr_html_()).text
    assert page.endswith(str(program))
    assert program.plan.physical.policy is None or "budget: 500 tokens a problem, on average" in page


def test_html_is_escaped() -> None:
    @qp.program(name="p")
    def p(q: str) -> str:
        rows = qp.chat(user=f"<script>alert('{q}')</script> & <b>")
        return rows.generate("<i>model</i>")

    for html in (p._repr_html_(), p.plan._repr_html_()):
        tree = outline(html)
        assert not {"script", "i"} & set(tree.seen)
        assert "<script>alert" in tree.text and "<i>model</i>" in tree.text


def test_colours_are_the_pages_own() -> None:
    html = PROGRAMS["dvts"]._repr_html_()
    assert "background" not in html and ";color:" not in html and '"color:' not in html


@pytest.mark.parametrize("use", ["", "; qp.model('m'); qp.col.text; @qp.scorer\ndef f(text: str) -> float: ..."])
def test_importing_loads_nothing_heavy(use: str) -> None:
    code = f"import sys\nimport qpdsl as qp{use.replace('; ', chr(10))}\nprint(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= ({"lark", "networkx"} if use else set())


def test_a_program_is_made_without_torch() -> None:
    uses = "p.explain(); str(p); p.plan._repr_html_()"
    code = f"import sys, qpdsl as qp; p = qp.load('beam_search'); {uses}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_there_is() -> None:
    assert {"program", "chat", "load", "Session"} <= set(dir(qp))
    with pytest.raises(AttributeError, match="no attribute `porgram`"):
        _ = qp.porgram


def test_a_result_that_nobody_saw_shows_its_rows() -> None:
    """One from another process, or of a script."""
    texts = {(0, 0): "3 * 4 = 12.\n\nSo 12 <b>.", (0, 1): "No, 13.", (1, 0): "Eight.", (): ""}
    rows = tuple(Candidate(text, (), 0.0, {"text": text, "score": 0.5}, (), path) for path, text in texts.items())
    result = qp.Result(0.5, (), qp.Tokens(16, 1234), 0, 1.5, None, candidates=rows, _value=12)
    tree = outline(pickle.loads(pickle.dumps(result))._repr_html_())
    assert tree.text.startswith("12 score 0.5 · 1,234 tokens sampled · 16 of prompts · 1.50 s")
    assert "b" in tree.seen and "script" not in tree.seen
    places = [tree.text.index(words) for words in ("★ the answer", "So 12 <b>.", "No, 13.", "Eight.")]
    assert places == sorted(places)
    failed = qp.Result(None, (), qp.Tokens(0, 0), 0, 0.0, "no row is left: <i>")
    assert outline(failed._repr_html_()).text.startswith("error: no row is left: <i>")


@dataclass
class Cell:
    """What a kernel would show below its cell: each drawing of each display, as HTML and in plain text."""

    html: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.html.append(bundle["text/html"])
        self.plain.append(bundle["text/plain"])

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        self.update(bundle, raw=raw)
        return self


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell, shell = Cell(), SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=cell.display))
    monkeypatch.setattr(notebook, "_QUICK", 0.0)
    monkeypatch.setattr(notebook, "_OFTEN", 0.02)
    return cell


def test_a_cell_calls_programs_in_the_kernels_loop(cell: Cell) -> None:
    llm = qp.model("zoo/counting")

    @qp.scorer
    async def length(text: str) -> float:
        await asyncio.sleep(0.2)
        return float(len(text))

    @qp.program
    def longest(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(llm, n=2, temperature=1.0, max_tokens=8)
        rows.best(by=rows.score(length))
        return qp.col.text

    question = "Mia has 3 boxes. <b>"

    async def main() -> list[str]:
        rows = [{"problem": question}]
        called = [longest(question), await longest.acall(question), longest.run(question).value]
        called += [result.value for result in longest.map(rows)]
        called += [result.value async for result in longest.amap(rows)]
        return called + [event.result.value for event in longest.stream(question) if isinstance(event, qp.Finished)]

    answers = asyncio.run(main())
    assert len(answers) == 6 and len(set(answers)) == 1
    pages = [outline(html).text for html in cell.html if html]
    assert any("generate llm" in page and "At work" not in page and "score length" in page for page in pages)
    assert any("0 of 1 rows" in line for line in cell.plain)
    # A single run is taken away in the end, for its result to show; of a map how it ended stays.
    assert cell.html.count("") == 3 and "1 of 1 rows" in cell.plain[-1] and "<details open" not in cell.html[-1]


def test_a_cell_shows_a_map_and_its_results_as_the_page_does(cell: Cell) -> None:
    """How far, how long still, what failed and why, the plan; of a result its search, its vote and its tokens."""
    program = qp.load("self_consistency")
    asked = "Tom has 12 coins. Tom gives 5 to Ann. How many coins does Tom have?"
    rows = [{"problem": asked, "id": "one"}, {"problem": "Mia has 4 boxes. " * 300, "id": "long"}]
    one, long = sorted(program.map(rows, concurrency=1), key=lambda result: result.id == "long")
    last = outline(cell.html[-1]).text
    assert "2 of 2" in last and "1×generate: the context has" in last
    assert "vote answer" in last and "decode" in last
    shown = outline(one._repr_html_()).text
    assert shown.startswith(one.value) and asked in shown
    assert "vote decided after" in shown or "vote open until" in shown
    assert "32 candidates" in shown and "★ the answer" in shown and "thrown away" in shown
    assert "✖ generate: the context has" in outline(long._repr_html_()).text


def test_runs_of_one_name_at_once_are_not_mixed(cell: Cell) -> None:
    program = qp.load("greedy")
    rows = [{"problem": f"Tom has {n} coins. How many coins does Tom have?", "id": "same"} for n in (3, 4)]
    for result in program.map(rows, concurrency=2):
        shown = outline(result._repr_html_()).text
        assert "1 candidate " in shown and shown.startswith(result.value)
