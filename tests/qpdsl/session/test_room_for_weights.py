"""A session whose keys and values take all of a device makes room for the weights of a model that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models import quick_load
from qpdsl.executor.models.text_model import TextModel
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor.programs import arguments
from tests.support.executor.small_card import SmallCard, small_card

# Bytes of the card, and what each model's weights and its load take of them for a moment.
TOTAL, WEIGHTS = 16 << 20, 4 << 20


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCard]:
    with small_card(TOTAL) as card:
        made = Session._made

        def loaded(self: Session, model: str, *rest: object) -> TextModel:
            if card.free < WEIGHTS:
                raise ModelError(model, "out of memory")
            return made(self, model, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(Session, "_made", loaded)
        yield card


def plan_of(model: str, rest: str = "") -> PhysicalPlan:
    text = f'model llm = "{model}"\nprogram p(problem: text) {{ chat user=problem | generate llm max_tokens=6 {rest} }}'
    return planned(lower(parse_file(Source("p.qp", text)), "p"))


def answer(session: Session, plan: PhysicalPlan) -> object:
    async def main() -> object:
        async with session.running():
            result = await session.run(plan, arguments(plan, problem="What is 3 * 4?"))
            assert result.error is None
            return result.value

    return asyncio.run(main())


def test_a_second_model_is_loaded_beside_the_first(card: SmallCard) -> None:
    first, second = plan_of("zoo/counting-mini"), plan_of("zoo/counting")
    session = Session()
    session.load(second)
    alone = answer(session, second)
    del session
    session = Session()
    session.load(first)
    before = answer(session, first)
    assert card.free < WEIGHTS
    session.load(second)
    assert answer(session, first) == before and answer(session, second) == alone
    # Loaded already, nothing gives way.
    made = card.made
    session.load(first)
    assert card.made == made


def test_a_model_that_cannot_be_loaded_leaves_the_others_as_they_were(
    card: SmallCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, first = Session(), plan_of("zoo/counting-mini")
    session.load(first)
    before = answer(session, first)
    with pytest.raises(ModelError):
        session.load(plan_of("./no-such-folder"))
    assert answer(session, first) == before


def test_a_model_that_is_asked_to_score_later_is_tried_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device whose memory is full there is no room for its weights once more."""
    devices: list[str] = []

    def load(name: str, location: object, device: str, *rest: object) -> object:
        devices.append(device)
        raise ModelError(name, "it is no verifier")

    monkeypatch.setattr(quick_load, "load", load)
    model = type("Loaded", (), {"name": "m", "verifier": None})()
    with pytest.raises(ModelError):
        quick_load.score_with(model, "m", None, "outcome")
    assert devices == ["cpu"]
