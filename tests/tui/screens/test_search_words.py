"""The words of the Search screen: votes, groups, scales, and why a run shows no candidates."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from qpdsl.executor.events.events import (
    CandidateRecord,
    EngineFigures,
    EngineStepped,
    Event,
    Expanded,
    InstanceStarted,
    RunStarted,
    Selected,
    Valued,
)
from tests.support.tui.screen import LARGE, SMALL, dashboard, press
from tests.support.tui.traces import write

PLAN = {
    "program": "p",
    "operators": [
        {"id": "0", "operator": "Generate", "text": "generate llm n=4"},
        {"id": "1", "operator": "TopK", "text": "keep 1 by score per group"},
        {"id": "2", "operator": "Vote", "text": "vote answer"},
    ],
}
FOUR = tuple((number,) for number in range(4))
MADE = Expanded(
    instance="a",
    operator="0",
    candidates=tuple(CandidateRecord(path=path, step=f"step {path[0]}", finish="eos", tokens=2) for path in FOUR),
)


def search(folder: Path, size: tuple[int, int], *some: Event, key: str = "3") -> str:
    """The Search screen after these events, the cursor on the first candidate, or another one."""
    how = {"seed": 0, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    begun = RunStarted(at=0.0, program="p", plan=PLAN, rows=1, **how)  # type: ignore[arg-type]
    path = write(folder / "run.jsonl", [begun, *some])

    async def main() -> str:
        async with dashboard(path, size) as pilot:
            return await press(pilot, key, "home")

    return asyncio.run(main())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_how_a_vote_stood(size: tuple[int, int], tmp_path: Path) -> None:
    voted = Selected(
        instance="a",
        operator="2",
        kept=FOUR[:1],
        dropped=FOUR[1:],
        keys=("42", "7", "42", None),
        weights=(1.0, 1.0, 1.0, None),
    )
    shown = search(tmp_path, size, InstanceStarted(instance="a"), MADE, voted)
    assert "4 candidates, 1 agreed, 1 outvoted, 1 no vote" in shown and "✕" not in shown
    lines = [line.split("│")[-1].split() for line in shown.splitlines()]
    if size == LARGE:
        assert [line for line in lines if line[:1] in (["42"], ["7"], ["no"])] == [
            ["42", "██████████", "2"],
            ["7", "█████", "1"],
            ["no", "vote", "1"],
        ]
    else:
        assert "42 ×2 · 7 ×1 · no vote ×1" in shown


def test_a_group_has_its_own_cut_and_scores_their_own_scale(tmp_path: Path) -> None:
    scores = (10.5, 10.0, 3.0, 2.0)
    valued = Valued(instance="a", operator="0", column="score", paths=FOUR, values=scores, scores=True)
    kept = [
        Selected(
            instance="a",
            operator="1",
            kept=FOUR[at : at + 1],
            dropped=FOUR[at + 1 : at + 2],
            group=str(group),
            keys=keys,
        )
        for group, at, keys in ((0, 0, scores[:2]), (1, 2, scores[2:]))
    ]
    shown = search(tmp_path, LARGE, InstanceStarted(instance="a"), MADE, valued, *kept)
    assert "bars: from the least to the greatest of a round" in shown
    assert "group 0  1 of 2 kept  bars from 10.0 to 10.5" in shown
    ranking = [line.split("│")[-1] for line in shown.splitlines()]
    cut = next(at for at, line in enumerate(ranking) if " cut ╌" in line)
    assert "step 0" in ranking[cut - 1] and "step 1" in ranking[cut + 1]


def test_a_cluster_says_that_its_replicas_send_no_candidates(tmp_path: Path) -> None:
    step = EngineStepped(at=1.0, report=EngineFigures("m @ local-0", 1, 1, 0, 1, 9, 0))
    shown = search(tmp_path, SMALL, InstanceStarted(instance="a"), step)
    assert "replicas send no candidates" in shown and "no candidates yet" not in shown
    assert "no candidates yet" in search(tmp_path, SMALL, InstanceStarted(instance="a"))


def test_a_graph_of_a_replica_has_the_top_of_its_values(tmp_path: Path) -> None:
    """Its batches are told without how many sequences they may have, and its rates may be small."""
    held = EngineFigures("m @ local-0", 4, 1, 0, 1, 9, 0, {"sequences": 6.0, "seconds": 0.5})
    steps = [EngineStepped(at=float(at), report=held) for at in (1, 5_000)]
    shown = search(tmp_path, SMALL, InstanceStarted(at=0.0, instance="a"), *steps, key="4")
    tops = dict(re.findall(r"(batch|decode tok/s) ·+ top (\S+)", shown))
    assert tops.keys() == {"batch", "decode tok/s"} and tops["batch"] == "6" and 0 < float(tops["decode tok/s"]) < 1
