"""What notebooks show: trees of plain HTML, escaped, without scripts; and what importing the package loads."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

import qpdsl as qp
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
        assert {name for name, _ in attrs} <= {"style", "open"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


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
