"""Tables, goals and plot of `decoding.json_output`, from its record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.common.results import Goal, Ratio, goal_table

# Our side with everything on.
ALL = "qpdsl"
_DENSE = "masked dense"
Record = dict[str, Any]
_CLOCKS = {"wall": 0, "cpu": 1}
# Of Gemma-3-270M in float32, one record at a time: how many times faster than these sides.
_LEAST = {_DENSE: 4.0, "generate": 6.0, "vllm": 1.5}


class Case:
    """A case of the record, by one of the clocks."""

    def __init__(self, entry: Record, clock: str) -> None:
        self.entry = entry
        self.rows: int = entry["rows"]
        self.rounds: dict[str, list[Record]] = entry["rounds"]
        self._clock = _CLOCKS[clock]

    @property
    def what(self) -> str:
        entry = self.entry
        return f"{entry['model']} {entry['dtype']}, {entry['threads']} thread(s), at most {entry['limit']} tokens"

    def seconds(self, side: str) -> list[float]:
        """Seconds a record, a round each, the prompt's time counted."""
        return [reply["total"][self._clock] / self.rows for reply in self.rounds[side]]

    def first(self, side: str) -> float:
        """Seconds until every row has its first token."""
        return statistics.median(reply["first"][self._clock] for reply in self.rounds[side])

    def speed(self, side: str) -> float:
        """Tokens a second, prompts' time counted."""
        return statistics.median(reply["count"] / reply["total"][self._clock] for reply in self.rounds[side])

    def ratio(self, side: str) -> Ratio:
        """How many times faster we are with everything on, by seconds a record."""
        return Ratio.of([b / a for a, b in zip(self.seconds(ALL), self.seconds(side), strict=True)])

    def verdicts(self, side: str) -> list[str]:
        return [verdict for reply in self.rounds[side] for verdict in reply["verdicts"]]

    def counts(self, side: str) -> list[Record]:
        """How each row's tokens came about; none of a peer."""
        return [counts for reply in self.rounds[side] for counts in reply["counts"]]

    def parts(self, side: str) -> str:
        """Shares of the steps' time, as cells."""
        whole = sum(reply["parts"]["steps"] for reply in self.rounds[side])
        parts = (sum(reply["parts"][name] for reply in self.rounds[side]) for name in ("masks", "head", "drafts"))
        return " | ".join(f"{part / whole:.1%}" for part in parts)

    def tokens(self, side: str) -> int:
        return sum(reply["count"] for reply in self.rounds[side])


def cases_of(record: Record, clock: str) -> list[Case]:
    """Those in which our side with everything on has run."""
    return [Case(entry, clock) for entry in record["cases"] if ALL in entry["rounds"]]


def goals_of(record: Record, clock: str) -> list[Goal]:
    """The ratios that were set, as far as they were measured, and that every output is a record."""
    goals: list[Goal] = []
    for case in cases_of(record, clock):
        if case.entry["model"] == "Gemma-3-270M" and case.entry["dtype"] == "float32" and case.rows == 1:
            for side, least in _LEAST.items():
                if side in case.rounds:
                    goals.append(Goal(f"Gemma-3-270M, one record: times {side}", least, case.ratio(side).median))
        right = sum(verdict != "wrong" for verdict in case.verdicts(ALL))
        what = f"{case.entry['model']} {case.entry['dtype']}, {case.rows} row(s): share of valid or cut records"
        goals.append(Goal(what, 1.0, right / len(case.verdicts(ALL))))
    return goals


def page(record: Record, clock: str) -> str:
    """All tables, as markdown."""
    lines = ["# JSON held to a schema", ""]
    cases = cases_of(record, clock)
    if cases:
        lines += [goal_table(goals_of(record, clock)), "", "![seconds a record, by side](json_output.svg)", ""]
    for what in dict.fromkeys(case.what for case in cases):
        own = [case for case in cases if case.what == what]
        lines += [f"## {what}", "", *_speeds(own), "", *_plans(own), "", *_sample(own[0]), ""]
    if record["absent"]:
        lines += ["## Left out", ""]
        lines += [f"- {row['model']} {row['dtype']}, {row['side']}: {row['why']}" for row in record["absent"]]
        lines.append("")
    return "\n".join([*lines, *_notes(record, clock)]) + "\n"


def _speeds(cases: Sequence[Case]) -> Iterator[str]:
    yield (
        "| rows | side | seconds a record | tokens a second | first token, s | all on is faster by | valid | cut "
        "| wrong | same rows |"
    )
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in cases:
        for side in case.rounds:
            verdicts = case.verdicts(side)
            same, of = case.entry["same"][side]
            counts = " | ".join(str(verdicts.count(verdict)) for verdict in ("valid", "cut", "wrong"))
            yield (
                f"| {case.rows} | {side} | {statistics.median(case.seconds(side)):.2f} | {case.speed(side):.1f} "
                f"| {case.first(side):.2f} | {case.ratio(side)} | {counts} | {same}/{of} |"
            )


def _plans(cases: Sequence[Case]) -> Iterator[str]:
    """What the plans did, of our own sides."""
    yield (
        "| rows | plan | forced | tokens a forward | drafted | accepted | ids allowed, median | p95 | near ties "
        "| time in masks | head | drafts |"
    )
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in cases:
        for side in case.rounds:
            counts = case.counts(side)
            if not counts:
                continue
            forced, rounds, drafted, accepted = (
                sum(row[name] for row in counts) for name in ("forced", "rounds", "drafted", "accepted")
            )
            allowed = sorted(count for row in counts for count in row["allowed"])
            share = f"{accepted / drafted:.0%}" if drafted else ""
            tokens = case.tokens(side)
            spread = f"{statistics.median(allowed):,.0f} | {_p95(allowed):,}" if allowed else " | "
            yield (
                f"| {case.rows} | {side} | {forced / tokens:.0%} | {tokens / max(rounds, 1):.2f} | {drafted} | {share} "
                f"| {spread} | {sum(row['near_ties'] for row in counts)} | {case.parts(side)} |"
            )


def _p95(ascending: Sequence[int]) -> int:
    return ascending[min(len(ascending) - 1, int(0.95 * len(ascending)))]


def _sample(case: Case) -> Iterator[str]:
    yield "One of the records:"
    yield ""
    yield f"    {case.entry['sample']}"


def _notes(record: Record, clock: str) -> Iterator[str]:
    clock_name = "the wall clock" if clock == "wall" else "processor time of the side and all that it starts"
    yield (
        f"Times are by {clock_name}, prompts counted. `{ALL}`: jump-forward, sparse and screened heads, n-gram drafts "
        f"where they pay. `{_DENSE}`: a mask and a dense head for every token, no jump-forward. How much faster: the "
        "median of the rounds, lowest and highest. Valid: JSON that the schema allows, bounds and lengths included. "
        "Cut: ended by the limit, and the beginning of a record. Same rows: those with the tokens of our side with "
        "everything on; llama.cpp's converter reads no bounds of integers, so that its grammar is a wider one. Ids "
        "allowed: of the draws that asked the model. Time in masks: what steps waited for them. One round at one row "
        "is one record; a record's length is its own."
    )
    machine = record["machine"]
    sides = ", ".join(f"{row['side']} {row['version']}" for row in record["sides"])
    yield ""
    yield (
        f"Written by `python -m benchmarks.decoding.json_output`. Measured on: {machine['processor']}, "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}; {sides}."
    )


def draw(record: Record, clock: str, path: Path) -> None:
    """Writes seconds a record of every side, a panel for each model, as SVG: the same bytes for the same figures."""
    cases = cases_of(record, clock)
    if not cases:
        return
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    whats = list(dict.fromkeys(case.what for case in cases))
    picture, panels = plt.subplots(1, len(whats), figsize=(6.5 * len(whats), 4.5), layout="constrained", squeeze=False)
    for axes, what in zip(panels[0], whats, strict=True):
        own = [case for case in cases if case.what == what]
        sides = list(dict.fromkeys(side for case in own for side in case.rounds))
        for number, case in enumerate(own):
            height = 0.8 / len(own)
            axes.barh(
                [place + number * height for place, side in enumerate(sides) if side in case.rounds],
                [statistics.median(case.seconds(side)) for side in sides if side in case.rounds],
                height=height,
                label=f"{case.rows} row(s)",
            )
        axes.set_yticks([place + 0.4 - 0.4 / len(own) for place in range(len(sides))], sides)
        axes.invert_yaxis()
        axes.set_xlabel("seconds a record")
        axes.set_title(what)
        axes.legend()
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
