"""What stands in the way of a goal, in a line each, from what the benchmarks of `every_core` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Parts of a step that take less are summed up.
_SMALL = 0.03
_MIB = 1 << 20


class StepObstacles:
    """Of the steps that `benchmarks.engine.threads` recorded, with two threads."""

    def __init__(self, record: Mapping[str, Any] | None) -> None:
        self._cases = {} if record is None else {case["work"]: case for case in record["cases"]}
        costs = {} if record is None else record["costs"]
        self._most = {"memory": costs["bandwidth"][1], "arithmetic": costs["speed"][1]} if costs else {}

    def read(self, rows: int, prompt: int, ratio: float) -> str:
        """Of prompts, where `ratio` was reached over someone else."""
        return self._of(f"{rows}×{prompt} tokens read", ratio)

    def step(self, rows: int, ratio: float) -> str:
        """Of a step, where `ratio` was reached over someone else."""
        return self._of(f"a step of {rows} row(s)", ratio)

    def second_thread(self, rows: int) -> str:
        """Of a step, over one thread."""
        case = self._cases.get(f"a step of {rows} row(s)")
        if case is None:
            return ""
        parts = [part for part in case["parts"] if part["two"] > _SMALL * case["two"]["whole"]]
        gains = ", ".join(f"{part['name']} {part['seconds'] / part['two']:.2f}{self._share(part)}" for part in parts)
        alone = case["one"]["whole"]
        return (
            f"gain of each part: {gains}; {1e3 * case['two']['host']:.1f} of {1e3 * case['two']['whole']:.1f} ms are "
            f"the host's, by one thread; {alone / self._least(case):.2f} with every part at the machine's limit"
        )

    def _of(self, work: str, ratio: float) -> str:
        case = self._cases.get(work)
        if case is None:
            return ""
        whole, two = case["two"]["whole"], case["two"]
        parts = sorted(case["parts"], key=lambda part: -part["two"])
        large = [part for part in parts if part["two"] > _SMALL * whole]
        named = [f"{part['name']} {part['two'] / whole:.0%}{self._share(part)}" for part in large]
        rest = sum(part["two"] for part in parts if part not in large)
        waits = whole - two["host"] - sum(part["two"] for part in parts)
        named += [f"other parts {rest / whole:.0%}", f"host {two['host'] / whole:.0%}", f"waits {waits / whole:.0%}"]
        limit = ratio * whole / self._least(case)
        return f"of {1e3 * whole:.0f} ms: {', '.join(named)}; {limit:.2f} with every part at the machine's limit"

    def _share(self, part: Mapping[str, Any]) -> str:
        """How much of what binds it a part reaches."""
        limit, what = max((seconds, what) for what, seconds in self._limits(part).items())
        return f" ({limit / part['two']:.0%} of {what})" if limit else ""

    def _limits(self, part: Mapping[str, Any]) -> dict[str, float]:
        """The least seconds of a part: to read its bytes, unless a cache has them, and for its operations."""
        seconds = {"memory": part["bytes"], "arithmetic": part["operations"]}
        seconds = {what: amount / self._most[what] for what, amount in seconds.items()}
        return {what: least if least < part["two"] else 0.0 for what, least in seconds.items()}

    def _least(self, case: Mapping[str, Any]) -> float:
        """Seconds with every part that bytes or operations bind at what the machine gives; the others as they are."""
        return case["two"]["host"] + sum(max(self._limits(part).values()) or part["two"] for part in case["parts"])  # type: ignore[no-any-return]


def of_memory(memory: Mapping[str, Any], empty: Mapping[str, Any], part: str) -> str:
    """Of what `benchmarks.resident` found for a model, and without one."""
    whole, alone, file = (size / _MIB for size in (memory[part], empty[part], memory["file"]))
    return f"of {whole:.0f} MiB, {alone:.0f} are a process without a model; the file has {file:.0f}"


def of_search(sides: Mapping[str, Any], side: str) -> str:
    """Of a search, beside another `side`."""
    ours, theirs = sides["planned"], sides[side]
    computed = ours["computed_a_problem"]
    each = [1e3 * one["seconds_a_problem"] / one["sampled_a_problem"] for one in (ours, theirs)]
    return (
        f"{ours['sampled_a_problem']:,.0f} tokens a problem against {theirs['sampled_a_problem']:,.0f}, "
        f"{each[0]:.2f} ms a token against {each[1]:.2f}; with what the judge reads {computed:,.0f} of ours go through "
        f"the model, {1e3 * ours['seconds_a_problem'] / computed:.2f} ms each"
    )


def of_serving(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    """Of one side of `benchmarks.serving.load`, beside another."""
    figures = {"tokens_per_second": "tokens a second", "first_p50": "s to the median first token"}
    figures |= {"first_p99": "s to the last", "whole_p50": "s to the median end"}
    return ", ".join(
        f"{ours[name]:.4g} {what} against {theirs[name]:.4g}" for name, what in figures.items() if theirs[name]
    )
