"""Recorded and made-up runs for the dashboard's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qpdsl.executor.events import events
from qpdsl.executor.events.codec import encode, header
from qpdsl.executor.events.events import CandidateRecord, EngineFigures, Event
from qpdsl.executor.events.trace import LineReader, read_trace

FOLDER = Path(__file__).parent / "recorded"
# Six rows of beam search on the built-in models; one of them fails, two are wrong with greedy decoding.
BEAM = FOLDER / "beam.jsonl"


def recorded(name: str = "beam") -> list[Event]:
    """A recorded run: that one, or one of those of `record.py`."""
    return list(read_trace(FOLDER / f"{name}.jsonl", LineReader()))


def when_busy() -> float:
    """The part of the time of the run on a server at which requests wait to be sent again."""
    reports = [event for event in recorded("server") if isinstance(event, events.ServerReported)]
    return next(report.at for report in reports if report.resumes > 0) / recorded("server")[-1].at


def write(path: Path, some: Iterator[Event] | list[Event]) -> Path:
    lines = [header(), *(encode(event, 0.0) for event in some)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def long_run(count: int) -> Iterator[Event]:
    """A run of about that many events: 5,000 rows, each with candidates, while the engine steps."""
    begun = next(event for event in recorded() if isinstance(event, events.RunStarted))
    plan = dict(begun.plan)
    rows = 5000
    yield events.RunStarted(
        at=0.0,
        program="beam_search",
        plan=plan,
        rows=rows,
        seed=0,
        device="cpu",
        concurrency=32,
        pid=1,
        wall=0.0,
        version="0",
    )
    ids = tuple(f"row-{number:04}" for number in range(rows))
    yield events.InputListed(at=0.0, ids=ids, asked=("How many?",) * rows, references=("7",) * rows)
    yield events.ModelsLoaded(at=0.1, models=("zoo/counting",), seconds=0.1)
    steps = count // rows
    at = 0.1
    for number, id_ in enumerate(ids):
        at += 0.01
        yield events.InstanceStarted(at=at, instance=id_)
        for index in range((steps - 6) // 2):
            report = EngineFigures(
                "zoo/counting",
                10,
                30,
                0,
                100 + index,
                1000,
                0,
                {"sequences": 30.0, "capacity": 128.0, "seconds": 0.001},
            )
            yield events.EngineStepped(at=at, report=report)
            yield events.OperatorDone(
                at=at,
                instance=id_,
                operator="1.0",
                rows_in=1,
                rows_out=4,
                prompt_tokens=40,
                sampled_tokens=20,
                seconds=0.01,
                cached_tokens=30,
                rounds=(index,),
            )
        candidates = tuple(
            CandidateRecord(path=(copy,), step="1 + 1 = 2.", finish="eos", finished=True) for copy in range(4)
        )
        yield events.Expanded(at=at, instance=id_, operator="1.0", rounds=(0,), candidates=candidates)
        paths = tuple(candidate.path for candidate in candidates)
        yield events.Valued(
            at=at,
            instance=id_,
            operator="1.1",
            rounds=(0,),
            column="score",
            paths=paths,
            values=(0.9, 0.5, 0.2, 0.1),
            scores=True,
        )
        yield events.Selected(at=at, instance=id_, operator="1.2", rounds=(0,), kept=paths[:1], dropped=paths[1:])
        yield events.InstanceDone(
            at=at,
            instance=id_,
            prompt_tokens=40,
            sampled_tokens=20,
            seconds=0.1,
            error=None,
            answer="7",
            score=0.9,
            path=(0,),
        )
        yield events.RowDone(
            at=at,
            row=id_,
            answer="7" if number % 3 else "8",
            score=0.9,
            prompt_tokens=40,
            sampled_tokens=20,
            seconds=0.1,
            reference="7",
            correct=bool(number % 3),
        )
    yield events.RunEnded(at=at, status="done")
