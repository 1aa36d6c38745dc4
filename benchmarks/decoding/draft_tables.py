"""Tables, goals and plot of `decoding.drafts`, from its record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.common.results import Goal, Ratio, goal_table

# Decoding without drafts, the side that the others are measured against.
NONE = "no draft"
Record = dict[str, Any]
_CLOCKS = {"wall": 0, "cpu": 1}
# Above this chance of a drafted token, and below this cost of one, both judged by drafts of so many tokens where they
# were tried, drafts are to bring so much for one row.
_ACCEPTED, _CHEAP, _JUDGED, _BRINGS = 0.75, 0.25, 4, 2.0
# Where the engine chooses how many tokens to draft, it never loses more than that.
_NEVER_UNDER = 0.97


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
        return f"{entry['model']}, {entry['task']}, temperature {entry['temperature']:g}"

    @property
    def settings(self) -> list[str]:
        return [side for side in self.rounds if side != NONE]

    def seconds(self, side: str) -> list[float]:
        return [reply["seconds"][self._clock] for reply in self.rounds[side]]

    def speed(self, side: str) -> float:
        return float(self.entry["count"] / statistics.median(self.seconds(side)))

    def speedup(self, side: str) -> Ratio:
        """Over decoding without drafts, round by round."""
        return Ratio.of([b / a for a, b in zip(self.seconds(side), self.seconds(NONE), strict=True)])

    def acceptance(self, side: str) -> float | None:
        """Of the tokens that were drafted, those that were right; None where none was."""
        drafted = sum(reply["drafted"] for reply in self.rounds[side])
        return sum(reply["accepted"] for reply in self.rounds[side]) / drafted if drafted else None

    def drafted(self, side: str) -> float:
        """Tokens drafted a round."""
        return float(self._sum(side, "drafted") / self._sum(side, "rounds"))

    def tokens_a_round(self, side: str) -> float:
        return float(self._sum(side, "draws") / self._sum(side, "rounds"))

    def draft_share(self, side: str) -> float:
        """Of the run's time, that of proposing tokens."""
        return float(self._sum(side, "draft_seconds") / sum(reply["seconds"][0] for reply in self.rounds[side]))

    def cost(self, side: str) -> float | None:
        """Seconds to draft a token, over those of a token that is drawn without drafts; None where none was drafted."""
        drafted = self._sum(side, "drafted")
        drawn = self._sum(NONE, "draws") - self.entry["prompts"] * len(self.rounds[NONE])
        if not drafted or not drawn:
            return None
        return float(self._sum(side, "draft_seconds") / drafted / (self._sum(NONE, "step_seconds") / drawn))

    def chance(self, side: str) -> float | None:
        """That a drafted token is right where those before it are; None where none was drafted.

        It is what gives the tokens of a round by (1 − α^(K+1)) / (1 − α) (Leviathan et al., 2023), with the mean number
        of drafted tokens in the place of K. Not for trees.
        """
        length, tokens = self.drafted(side), self.tokens_a_round(side)
        if not length:
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if (1 - middle ** (length + 1)) / (1 - middle) < tokens else (low, middle)
        return low

    def _sum(self, side: str, name: str) -> float:
        return float(sum(reply[name] for reply in self.rounds[side]))


def is_adaptive(side: str) -> bool:
    """Whether the engine chooses how much to draft: the others have their size in their name."""
    return "," not in side


def cases_of(record: Record, clock: str) -> list[Case]:
    return [Case(entry, clock) for entry in record["cases"]]


def goals_of(record: Record, clock: str) -> list[Goal]:
    """What was set for drafts whose size the engine chooses."""
    goals: list[Goal] = []
    for case in cases_of(record, clock):
        for side in filter(is_adaptive, case.settings):
            name = f"{case.what}, {case.rows} row(s), {side}: times no draft"
            # The engine may have chosen to draft next to nothing, which says little.
            judged = f"{side}, {_JUDGED} tokens" if f"{side}, {_JUDGED} tokens" in case.rounds else side
            chance, cost = case.chance(judged), case.cost(judged)
            pays = chance is not None and cost is not None and chance > _ACCEPTED and cost < _CHEAP
            pays = pays and case.drafted(judged) >= 1
            least = _BRINGS if pays and case.rows == 1 else _NEVER_UNDER
            goals.append(Goal(name, least, case.speedup(side).median))
    return goals


def page(record: Record, clock: str) -> str:
    """All tables, as markdown."""
    cases = cases_of(record, clock)
    lines = ["# Drafts", ""]
    if cases:
        lines += [goal_table(goals_of(record, clock)), "", "![times no draft, by method and rows](drafts.svg)", ""]
    for what in dict.fromkeys(case.what for case in cases):
        lines += [f"## {what}", "", *_table([case for case in cases if case.what == what]), ""]
    if record["absent"]:
        whys = dict.fromkeys(f"- {row['model']}, {row['side']}: {row['why']}" for row in record["absent"])
        lines += ["## Left out", "", *whys, ""]
    return "\n".join([*lines, *_notes(record, clock)]) + "\n"


def _table(cases: Sequence[Case]) -> Iterator[str]:
    yield (
        "| rows | draft | tokens a second | times no draft | drafted a round | accepted | chance of a token "
        "| tokens a round | cost of a drafted token | time in drafts | same texts |"
    )
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in cases:
        for side in case.rounds:
            same = f"{case.entry['same'][side]}/{case.entry['prompts']}"
            if side == NONE:
                yield f"| {case.rows} | {side} | {case.speed(side):,.1f} | | | | | | | | {same} |"
                continue
            accepted, chance, cost = case.acceptance(side), case.chance(side), case.cost(side)
            cells = [
                str(case.rows),
                side,
                f"{case.speed(side):,.1f}",
                str(case.speedup(side)),
                f"{case.drafted(side):.1f}",
                "" if accepted is None else f"{accepted:.0%}",
                "" if chance is None or "tree" in side else f"{chance:.0%}",
                f"{case.tokens_a_round(side):.2f}",
                "" if cost is None else f"{cost:.2f}",
                f"{case.draft_share(side):.0%}",
                same,
            ]
            yield f"| {' | '.join(cells)} |"


def _notes(record: Record, clock: str) -> Iterator[str]:
    clock_name = "the wall clock" if clock == "wall" else "processor time"
    yield (
        f"Times are by {clock_name}, prompts counted. Times no draft: the median of the rounds, lowest and highest. "
        "A method alone drafts as many tokens as pay by what the engine has measured so far, or none; one with a "
        "number drafts that many each time. A tree of 2 x 3 has 14 tokens and is three deep. Drafted, and tokens, a "
        "round: of a row. Accepted: of all tokens drafted, those behind a wrong one and those of other branches "
        "counted. Chance of a token: that it is right where those before it are, by the tokens of a round. The cost of "
        "a drafted token is in tokens that are drawn without drafts, whose texts the last column counts."
    )
    machine = record["machine"]
    yield ""
    yield (
        f"Written by `python -m benchmarks.decoding.drafts`. Measured on: {machine['processor']}, {machine['cores']} "
        f"cores, Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}."
    )


def draw(record: Record, clock: str, path: Path) -> None:
    """Writes times no draft of every setting, a panel for each task, as SVG: the same bytes for the same figures."""
    cases = cases_of(record, clock)
    if not cases:
        return
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    whats = list(dict.fromkeys(case.what for case in cases))
    columns = 2
    lines = -(-len(whats) // columns)
    picture, panels = plt.subplots(lines, columns, figsize=(12, 0.6 + 3.4 * lines), layout="constrained", squeeze=False)
    for axes in panels.flat[len(whats) :]:
        axes.set_visible(False)
    for axes, what in zip(panels.flat, whats, strict=False):
        own = [case for case in cases if case.what == what]
        sides = list(dict.fromkeys(side for case in own for side in case.settings))
        for number, case in enumerate(own):
            height = 0.8 / len(own)
            there = [(place, side) for place, side in enumerate(sides) if side in case.rounds]
            axes.barh(
                [place + number * height for place, _ in there],
                [case.speedup(side).median for _, side in there],
                height=height,
                label=f"{case.rows} row(s)",
            )
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks([place + 0.4 - 0.4 / len(own) for place in range(len(sides))], sides)
        axes.invert_yaxis()
        axes.set_xlabel("times as fast as without drafts")
        axes.set_title(what)
        axes.legend()
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
