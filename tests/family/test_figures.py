"""The figures that were measured: as JSON, in the page of the docs, on the models' cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.family.page import page as family_page
from family.measure.cards import generator_card, mini_card, thinker_card, verifier_card
from family.measure.family_figures import Figures
from family.measure.thinking_accuracy import BUDGETS, FORCED, ThinkingFigures
from qpdsl import zoo
from tests.support.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "family.json"
THINKING = RESULTS.with_name("thinking_budget.json")


@pytest.fixture(scope="module")
def figures() -> Figures:
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Figures.from_json(json.dumps(data["figures"]))


@pytest.fixture(scope="module")
def thinking() -> ThinkingFigures:
    return ThinkingFigures.from_json(json.loads(THINKING.read_text(encoding="utf-8"))["figures"])


def test_figures_survive_json(figures: Figures, thinking: ThinkingFigures) -> None:
    assert Figures.from_json(figures.to_json()) == figures
    assert ThinkingFigures.from_json(json.loads(json.dumps(thinking.to_json()))) == thinking


def test_page_and_cards_say_what_was_measured(figures: Figures, thinking: ThinkingFigures) -> None:
    machine = json.loads(RESULTS.read_text(encoding="utf-8"))["machine"]["sentence"]
    assert (ROOT / "docs" / "reference" / "built_in_models.md").read_text(encoding="utf-8") == family_page(
        figures, thinking, machine
    )
    cards = {
        "counting": generator_card(figures, ""),
        "counting-mini": mini_card(figures, ""),
        "counting-thinker": thinker_card(thinking, ""),
        "counting-prm": verifier_card(figures, ""),
    }
    for name, card in cards.items():
        shipped = (zoo.path(f"zoo/{name}") / "README.md").read_text(encoding="utf-8")
        start = shipped.index("\n\n", shipped.index("\n\n") + 2)
        for line in card.splitlines():
            if line.startswith("|"):
                assert line in shipped[start:]


@pytest.mark.unshipped
def test_the_pictures_are_drawn(figures: Figures, thinking: ThinkingFigures, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.family import picture, thinking_budget

    picture.draw(figures, tmp_path / "family.svg")
    thinking_budget.draw(thinking, tmp_path / "thinking.svg")
    for name in ("family", "thinking"):
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_the_family_is_to_be_good_at(figures: Figures) -> None:
    greedy = figures.accuracy("greedy", 1).right
    assert 0.4 <= greedy <= 0.6
    assert figures.accuracy("weighted", 16).right - greedy >= 0.2
    assert figures.accuracy("beam", 16).right - greedy >= 0.2
    assert figures.records.constrained >= 0.8


def test_longer_thoughts_are_right_more_often_and_so_are_those_that_are_told_to_wait(thinking: ThinkingFigures) -> None:
    none, *rights = [thinking.thought(budget).right for budget in BUDGETS]
    assert rights == sorted(rights)
    assert rights[-1] - none >= 0.15
    # The shorter of the two is too short for a check, with the wait and without it.
    assert thinking.thought(FORCED[-1], forced=True).right > thinking.thought(FORCED[-1]).right


def test_the_mini_model_is_worse_than_the_generator_and_often_of_its_mind(figures: Figures) -> None:
    greedy, (alone, filtered) = figures.accuracy("greedy", 1), figures.small
    assert greedy.right - alone.right >= 0.3
    assert alone.by_level[1] >= 0.3
    assert filtered.right >= greedy.right - 0.05
    assert 0.75 <= figures.mini.acceptance <= figures.mini.same <= 0.95
