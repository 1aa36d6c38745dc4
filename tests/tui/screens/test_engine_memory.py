"""The Engine screen of a run whose engine told what it holds in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.tui.screen import LARGE, dashboard, press
from tests.support.tui.traces import BEAM


def test_weights_activations_and_other(tmp_path: Path) -> None:
    lines = []
    for line in BEAM.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event.get("kind") == "EngineStepped":
            mebibytes = {"weight_bytes": 10, "activation_bytes": 2, "leased_bytes": 4, "resident_bytes": 500}
            event["report"] |= {name: size << 20 for name, size in mebibytes.items()}
        lines.append(json.dumps(event))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines) + "\n", "utf-8")

    async def main() -> None:
        async with dashboard(trace, LARGE) as pilot:
            shown = await press(pilot, "4")
            facts = [line[at : at + 34].split() for line in shown.splitlines() for at in (2, 40)]
            assert ["weights", "10", "MiB"] in facts and ["activations", "2.0", "MiB"] in facts
            assert ["process", "500", "MiB"] in facts
            # A generator and a verifier: beside both, their pages and the activations of one of them.
            assert ["of", "it", "other", "470", "MiB"] in facts
            assert "_bytes" not in shown and "weight bytes" not in shown

    asyncio.run(main())


def test_the_first_line_shares_out_the_time_and_says_that_memory_is_short(tmp_path: Path) -> None:
    lines, shared = [], (0.25, 0.5)
    for line in BEAM.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event.get("kind") != "EngineStepped":
            lines.append(json.dumps(event))
        if event.get("kind") == "ModelsLoaded":
            begun = event["at"]
        if event.get("kind") == "RunEnded":
            ended = event["at"]
    steps = [json.loads(line) for line in BEAM.read_text("utf-8").splitlines() if "EngineStepped" in line]
    models = sorted({step["report"]["model"] for step in steps})
    for model, share, at in zip(models, shared, (begun + (ended - begun) / 4, ended), strict=True):
        own = next(step for step in steps if step["report"]["model"] == model)
        own["report"] |= {"seconds": share * (ended - begun), "preemptions": 3}
        lines.append(json.dumps({**own, "at": at}))
    header, *told = lines
    lines = [header, *sorted(told, key=lambda line: json.loads(line)["at"])]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines) + "\n", "utf-8")

    async def main() -> None:
        async with dashboard(trace, LARGE) as pilot:
            shown = await press(pilot, "4")
            (words,) = [line for line in shown.splitlines() if "▒ verifier" in line]
            # One model writes, the other judges, and no row runs any more.
            assert "verifier 50%" in words and "idle 25%" in words and ("decode" in words or "prefill" in words)
            line = next(line for line in shown.splitlines() if "sequences gave way" in line)
            assert "6 sequences gave way" in line and "--kv-memory" in line

    asyncio.run(main())
