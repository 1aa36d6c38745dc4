"""What is recorded of how a row came to its answer, from the draws that were kept while it ran."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qpdsl.executor.sample_memory.row_trajectory import RowTrajectory, TrajectoryDraw, TrajectoryEnd

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.instance.kept_draws import KeptDraws, PlacedSample
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.executor.text.context import Context
    from qpdsl.session.session import Session


async def trajectory_of(session: Session, instance: str, result: InstanceResult, kept: KeptDraws) -> RowTrajectory:
    """The trajectory of an instance that has ended. Log-probabilities are read inside `session.running()`."""
    draws = await asyncio.gather(*(_draw(session, sample) for sample in kept.samples(instance)))
    rows = result.rows if result.candidates is None else [candidate.row for candidate in result.candidates]
    answer = result.rows[0].path if result.rows and result.error is None else None
    return RowTrajectory(
        draws=tuple(draws),
        ends=tuple(map(_end, rows)),
        chosen=next((place for place, row in enumerate(rows) if row.path == answer), None),
    )


async def _draw(session: Session, sample: PlacedSample) -> TrajectoryDraw:
    told, drawn = await session.logprobs(sample), sample.sample.tokens
    shown = drawn[: len(drawn) - (sample.sample.finish == "eos")]
    return TrajectoryDraw(
        model=sample.model,
        operator=sample.place.operator,
        rounds=sample.place.rounds,
        path=sample.place.path,
        prompt=sample.request.prompt,
        tokens=drawn,
        text=session.text_model(sample.model).detokenizer.text(shown),
        finish=sample.sample.finish,
        logprobs=None if told is None else told.model,
        drawn_logprobs=None if told is None else told.drawn,
    )


def _end(row: Row) -> TrajectoryEnd:
    made = row.generated
    context, text = _asked(row.context, made.text)
    return TrajectoryEnd(path=row.path, prompt=context, text=text, thought=made.thought.text, tokens=made.tokens)


def _asked(context: Context | None, text: str) -> tuple[tuple[dict[str, str], ...] | str, str]:
    """What a row was asked, and its answer: the beginning of a turn that a program wrote is a part of the answer."""
    if context is None:
        return "", text
    if not context.turns:
        return "".join(piece for piece, _ in context.prompt), text
    turns = list(context.turns)
    if turns[-1].role == "assistant":
        text = turns.pop().text + text
    messages = []
    for turn in turns:
        thought = {"reasoning_content": turn.thought} if turn.thought else {}
        calls = {"calls": turn.calls} if turn.calls else {}
        messages.append({"role": turn.role, "content": turn.text, **thought, **calls})
    return tuple(messages), text
