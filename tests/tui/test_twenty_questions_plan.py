"""What people ask of a run and its plan: each question by at most the keys that it should take, read off the screen.

The recorded runs are of shipped programs, of an early exit, and on a server that is too busy now and then.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from qpdsl.cli import main as qpdsl
from qpdsl.cli.runs.compared_runs import ComparedRuns
from qpdsl.cli.runs.replayed_rows import replayed_events
from qpdsl.executor.events.events import (
    Estimated,
    Event,
    InputListed,
    InstanceDone,
    InstanceStarted,
    OperatorDone,
    OperatorEstimate,
    RunSaved,
    RunStarted,
)
from qpdsl.runs.store.run_folder import VARIABLE
from qpdsl.tui.screens.plan import _spread
from qpdsl.tui.state.compare import OtherName, OtherRow, OtherRun
from qpdsl.tui.state.decisions import Expectation
from qpdsl.tui.widgets.bars import SCREENS
from tests.support.paths import ROOT
from tests.support.tui.screen import LARGE, SMALL, dashboard, press, settle
from tests.support.tui.traces import BEAM, FOLDER, recorded, when_busy, write

PROBLEMS = (ROOT / "programs" / "data" / "counting-500.jsonl").read_text("utf-8").splitlines()[1:6]
LONG = [json.dumps({"id": f"long-{n}", "problem": f"Mia has {n} boxes. " * (300 + n), "answer": "1"}) for n in (3, 4)]
# What is run here, to be saved and compared: the rows, and options.
RUNS: dict[str, tuple[Sequence[str], tuple[str, ...]]] = {
    "narrow": (PROBLEMS, ("--set", "width=1", "--set", "expand=1", "--disable-rule", "score_cache")),
    "beam": ([*PROBLEMS[:4], *LONG], ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two traces by their names, and the saved runs in a folder of their own."""
    folder = tmp_path_factory.mktemp("asked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "saved"))
        for name, (problems, options) in RUNS.items():
            rows, trace = folder / "rows.jsonl", folder / f"{name}.jsonl"
            rows.write_text("\n".join(problems) + "\n", "utf-8")
            paths = ["--input", str(rows), "--output", f"{trace}.out.jsonl", "--trace", str(trace)]
            assert qpdsl(["run", "beam_search", *paths, *options]) in (0, 1)
    yield folder


@pytest.fixture
def saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ComparedRuns:
    monkeypatch.setenv(VARIABLE, str(folder / "saved"))
    return ComparedRuns()


def asked(trace: Path, *keys: str, size: tuple[int, int] = SMALL, part: float = 1.0, **how: object) -> str:
    """The screen after these keys, from the first screen on."""

    async def main() -> str:
        async with dashboard(trace, size, part, **how) as pilot:
            return await press(pilot, *keys) if keys else await settle(pilot)

    return asyncio.run(main())


def changed(path: Path, change: type[Event], more: Sequence[Event] = (), **how: object) -> Path:
    """The recorded run with fields of one kind of event changed, and other events before its end."""
    events = [replace(event, **how) if type(event) is change else event for event in recorded()]  # type: ignore[type-var]
    return write(path, [*events[:-1], *more, events[-1]])


def test_1_how_long_still() -> None:
    """No key: between which times all rows will be done."""
    assert re.search(r"\d:\d\d–\d:\d\d left", asked(BEAM, part=0.85).splitlines()[0])


def test_2_how_well_and_how_sure(folder: Path, saved: ComparedRuns) -> None:
    """No key: the share of right answers, how sure that is, greedy decoding's and the last run's."""
    head = asked(folder / "beam.jsonl", runs=saved).splitlines()[1]
    assert re.search(r"\d+±\d+% right greedy \d+% last \d+%", head)
    head = asked(folder / "beam.jsonl", size=(120, 40), runs=saved).splitlines()[1]
    assert re.search(r"last \d+% on 4 of the rows", head)
    assert "last" not in asked(FOLDER / "self_consistency.jsonl", runs=saved).splitlines()[1]


def test_3_what_is_slow_now() -> None:
    """No key: the operator is marked and the cursor on it, with its rate and its trend."""
    shown = asked(BEAM, part=0.85)
    (hot,) = [line for line in shown.splitlines() if re.search(r"●\d hot", line)]
    assert hot.startswith("▌") and "generate llm" in hot
    assert re.search(r"now +\d+ tok/s  .*[▁-█]", shown)


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
def test_6_why_a_row_failed(folder: Path, size: tuple[int, int]) -> None:
    """Two keys: in which operator, and all of the reason."""
    assert "✖ generate: the context has" in asked(folder / "beam.jsonl", "exclamation_mark", size=size)
    told = " ".join(asked(folder / "beam.jsonl", "exclamation_mark", "enter", size=size).replace("│", " ").split())
    assert re.search(r"error the context has \d+ tokens, zoo/counting takes \d+", told)
    assert "failed in generate llm" in told


def test_7_whether_many_fail_for_one_reason(folder: Path) -> None:
    """No key, or one: how many, where and why, though the reasons differ in their numbers."""
    for keys in ((), (key_of("rows"),)):
        assert "2× generate: the context has" in asked(folder / "beam.jsonl", *keys)


def test_8_where_the_tokens_went(folder: Path) -> None:
    """One key: by operator, by round, by what became of them, by model."""
    shown = asked(folder / "beam.jsonl", "u", size=(100, 50))
    rounds = [int(tokens.replace(",", "")) for tokens in re.findall(r"round \d+ +([\d,]+)", shown)]
    each = re.findall(r"(?:generate|score) .*? ([\d,]+) +\d+%  [\d,]+ from the cache", shown)
    operators = [int(tokens.replace(",", "")) for tokens in each]
    whole = int(re.search(r"in all +([\d,]+)", shown)[1].replace(",", ""))  # type: ignore[index]
    assert sum(rounds) == sum(operators) == whole
    shares = re.findall(r"(in the answer|kept beside it|thrown away) +[\d,]+ +([\d.]+)% +of what was sampled", shown)
    assert len(shares) == 3 and sum(float(share) for _, share in shares) == pytest.approx(100, abs=2)
    assert "zoo/counting-prm" in shown
    assert re.search(
        r"by the small one +\d+ of \d+ draws stood", asked(FOLDER / "filter_decoding.jsonl", "u", size=(100, 50))
    )


def test_9_what_a_rule_saved(folder: Path) -> None:
    """One key: what each rule saved of what it counted, and about how long that would have taken."""
    shown = asked(folder / "beam.jsonl", "r", size=(100, 60))
    assert re.search(r"share_prefixes +saved [\d,]+ of [\d,]+ prompt tokens, about [\d.]+ s", shown)
    assert re.search(r"score_cache +saved \d+ of \d+ steps judged", shown)
    forced = asked(FOLDER / "constrained_json.jsonl", "r", size=(100, 60))
    assert re.search(r"jump_forward +saved \d+ forwards, about [\d.]+ s", forced)


def test_10_how_far_off_the_estimate_was(folder: Path, tmp_path: Path) -> None:
    """No key: the estimate beside what came, and a mark where they part."""
    shown = asked(FOLDER / "puct.jsonl")
    (line,) = [line for line in shown.splitlines() if "├ score prm" in line]
    assert "≤" not in line and not re.search("over|under", line)
    few = Estimated(
        operators={"1.0": OperatorEstimate(rows=4.0)}, seconds=1.0, in_flight=1.0, kv_bytes=0, source="", device=""
    )
    (line,) = [
        line
        for line in asked(changed(tmp_path / "few.jsonl", OperatorDone, [few])).splitlines()
        if "generate llm" in line and "hot" in line
    ]
    assert re.search(r" 4 ×1\d over", line)


@pytest.mark.parametrize(("deviation", "seen", "marked"), [(0.5, 100, True), (200.0, 100, False), (0.5, 2, False)])
def test_10_an_estimate_is_off_where_problems_do_not_differ_so_much(
    tmp_path: Path, deviation: float, seen: int, marked: bool
) -> None:
    """Without a key: rows half as many again are marked where problems hardly differ, and enough of them were seen."""
    done = [event for event in recorded() if isinstance(event, OperatorDone) and not event.baseline]
    started = sum(isinstance(event, InstanceStarted) and not event.baseline for event in recorded())
    rows = sum(event.rows_out for event in done if event.operator == "1.0") / started
    own = OperatorEstimate(rows=rows / 1.5, prompt_tokens=9.0, sampled_tokens=1.0, seconds=2.0)
    own = replace(own, rows_deviation=deviation, tokens_deviation=1.0)
    told = Estimated(operators={"1.0": own}, seconds=1.0, in_flight=1.0, kv_bytes=0, source="", device="", seen=seen)
    shown = asked(changed(tmp_path / "few.jsonl", OperatorDone, [told]), "d", size=(100, 50))
    assert ("×1.5 over" in shown) == marked
    assert bool(re.search(r"expected +[\d.]+ rows \([\d.]+–[\d.]+\)", shown)) == (seen > 2)


def test_16_what_filter_exit_and_drafts_decide(tmp_path: Path) -> None:
    """No key: on the line of decisions."""
    assert re.search(r"decided +small \d+%", asked(FOLDER / "filter_decoding.jsonl"))
    assert re.search(r"decided +forced \d+%", asked(FOLDER / "constrained_json.jsonl"))
    shown = asked(FOLDER / "early.jsonl")
    assert re.search(r"decided +exits \d+% · differs [\d.]+%", shown)
    counts = {"drafted": 10, "accepted": 7}
    assert "drafts kept 70%" in asked(changed(tmp_path / "drafts.jsonl", OperatorDone, counts=counts))


def test_17_what_it_costs_and_what_is_sent_again() -> None:
    """No key: the cost against its bound, and what waits for the server and why."""
    busy = asked(FOLDER / "server.jsonl", size=(120, 40), part=when_busy() + 0.001)
    assert re.search(r"cost [\d.]+ of 5", busy) and re.search(r"\d of \d+ there", busy)
    told = " ".join(busy.split())
    assert re.search(r"\d+ sent again, [1-9]\d* now waiting: .*429.*, next in \d+", told)
    assert re.search(r"cost 0\.00\d+ of 5", asked(FOLDER / "server.jsonl"))


def test_18_whether_it_is_better_than_the_last(folder: Path, saved: ComparedRuns) -> None:
    """Two keys: the difference and how sure it is, and which rows flipped; while the run goes on too."""
    shown = asked(folder / "beam.jsonl", "c", "enter", size=(120, 40), runs=saved)
    assert re.search(r"with \S+ +[+-][\d.]+ points \([+-][\d.]+ to [+-][\d.]+\), p = [\d.]+", shown)
    assert re.search(r"4 in common: \d gained, \d lost +tokens \+\d+%", shown)
    assert "width 4, there 1" in shown and "first difference" in asked(
        folder / "beam.jsonl", "c", "enter", size=LARGE, runs=saved
    )
    plans = asked(folder / "beam.jsonl", "c", "enter", "l", size=(120, 40), runs=saved)
    assert "= └ extract answer = final_answer" in plans
    assert re.search(r"~ here .*score prm .*score cache", plans) and re.search(r"~ there .*score prm", plans)
    begun = asked(folder / "beam.jsonl", key_of("compare"), size=(120, 40), part=0.93, runs=saved)
    assert "in common" in begun or "no row has ended in both runs yet" in begun


class Others:
    """Saved runs of the program with these rows each, the newest first; `names` has what is otherwise, by index."""

    def __init__(
        self, program: str, *rows: dict[str, str], names: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        self.program, self.otherwise = program, names or {}
        self.runs = {f"run-{at}": each for at, each in enumerate(rows)}

    def names(self) -> list[OtherName]:
        return [
            replace(OtherName(name, self.program, len(rows), 0, len(rows)), **self.otherwise.get(at, {}))
            for at, (name, rows) in enumerate(self.runs.items())
        ]

    def read(self, name: str) -> OtherRun:
        rows = {id: OtherRow(id, asked, "", True, 1) for id, asked in self.runs[name].items()}
        return OtherRun(name, rows, ())


def test_18_the_last_run_is_one_of_the_same_rows() -> None:
    """What ran over other data, or over other rows of the same names, says nothing of this run."""
    program = next(event.program for event in recorded() if isinstance(event, RunStarted))
    (same, *_) = zip(listed().ids, listed().asked, strict=True)
    others = [{"other": ""}, {same[0]: "Quite another question"}]
    beside = Others(program, *others, dict([same]))
    head, *shown = asked(BEAM, key_of("compare"), size=LARGE, runs=beside).splitlines()[1:]
    assert "last 100%" in head and "with run-2" in "".join(shown)
    head, *shown = asked(BEAM, key_of("compare"), size=LARGE, runs=Others(program, *others)).splitlines()[1:]
    assert "last" not in head and "c chooses one" in "".join(shown)
    shown = asked(BEAM, "c", "enter", size=LARGE, runs=Others(program, *others)).splitlines()
    assert "no rows in common: c chooses another" in "".join(shown)


@pytest.mark.parametrize(
    "otherwise", [{"grader": "exact 1"}, {"input": "another.jsonl"}, {"program": "greedy"}, {"started": 2000.0}]
)
def test_18_the_last_run_is_graded_alike_over_the_same_data_and_earlier(
    tmp_path: Path, otherwise: dict[str, Any]
) -> None:
    how = {"grader": "math 1", "input": "math.jsonl"}
    trace = changed(tmp_path / "known.jsonl", RunStarted, wall=1000.0, **how)
    program = next(event.program for event in recorded() if isinstance(event, RunStarted))
    rows = dict(zip(listed().ids, listed().asked, strict=True))
    names = {0: {**how, "started": 900.0, **otherwise}, 1: {**how, "started": 900.0}}
    head, *shown = asked(
        trace, key_of("compare"), size=LARGE, runs=Others(program, rows, rows, names=names)
    ).splitlines()[1:]
    assert "last 100%" in head and "with run-1" in "".join(shown)


def test_18_the_header_and_compare_count_the_same_rows() -> None:
    """Not those of the other run that this one has not, nor those that were not graded in both."""
    program = next(event.program for event in recorded() if isinstance(event, RunStarted))
    rows = dict(zip(listed().ids[:2], listed().asked, strict=False))
    others = Others(program, {**rows, **{f"more-{at}": "" for at in range(8)}}, names={0: {"right": 1, "judged": 10}})
    head, *shown = asked(BEAM, key_of("compare"), size=LARGE, runs=others).splitlines()[1:]
    assert "last 100% on 2 of the rows" in head and "2 in common" in "".join(shown)


def test_the_header_says_that_times_are_a_replays(tmp_path: Path) -> None:
    again = changed(tmp_path / "again.jsonl", RunStarted, [RunSaved(at=0.0, run="run", replayed=True)])
    assert "times replayed" in asked(again).splitlines()[1] and "times replayed" not in asked(BEAM)
    assert "replayed: times are not the run's" in asked(again, size=LARGE).splitlines()[1]


def listed() -> InputListed:
    return next(event for event in recorded() if isinstance(event, InputListed))


def test_18_rows_differ_from_the_same_word_on(folder: Path, saved: ComparedRuns) -> None:
    async def main() -> None:
        async with dashboard(folder / "beam.jsonl", (120, 40), runs=saved) as pilot:
            await press(pilot, key_of("compare"))
            both = await press(pilot, "d")
            assert "first difference  the other run saved no texts" in both and "text there" not in both
            await press(pilot, "escape")
            assert "candidate" in await press(pilot, "enter")
            assert "in common" in await press(pilot, "escape")

    asyncio.run(main())


def test_19_which_rows_are_stuck() -> None:
    """No key: the rows at work, the longest first, with round and operator."""
    shown = asked(BEAM, part=0.85)
    assert "● 1 at work" in shown
    assert re.search(r"count-010 +r\d+ +generate llm.* \d:\d\d", shown)


def test_20_whether_an_answer_comes_again(tmp_path: Path) -> None:
    """One key."""
    assert "again the same tokens every time" in asked(FOLDER / "self_consistency.jsonl", key_of("rows"))
    ties = changed(tmp_path / "ties.jsonl", OperatorDone, counts={"near_ties": 1})
    assert re.search(r"again \d+ near ties", asked(ties, key_of("rows")))
    assert re.search(
        r"again the server repeats by its seed, \d+ requests", asked(FOLDER / "server.jsonl", key_of("rows"))
    )


def key_of(screen: str) -> str:
    return str(SCREENS.index(screen) + 1)


def test_a_row_is_copied_as_the_command_that_repeats_it(folder: Path, saved: ComparedRuns) -> None:
    """What the command makes of the row has the row's tokens."""

    async def main() -> str:
        async with dashboard(folder / "beam.jsonl", runs=saved) as pilot:
            await press(pilot, key_of("rows"), "down", "y", "enter")
            return pilot.app.clipboard

    program, command, name, option, row = shlex.split(asyncio.run(main()))
    assert (program, command, option) == ("qpdsl", "replay", "--row")
    _, events = replayed_events(name, [row])
    (again,) = [event for event in events if isinstance(event, InstanceDone) and not event.baseline]
    lines = (folder / "beam.jsonl").read_text("utf-8").splitlines()
    first = next(json.loads(line) for line in lines if f'"InstanceDone","instance":"{row}"' in line)
    assert (again.answer, again.sampled_tokens) == (first["answer"], first["sampled_tokens"])


def test_words_are_explained_and_every_key_is_in_the_palette(folder: Path) -> None:
    shown = " ".join(asked(folder / "beam.jsonl", "question_mark", size=LARGE).split())
    assert "compute a prompt once for all samples" in shown and "rows/pr." in shown and "ctrl+p" in shown

    async def main(pilot: Pilot | None = None) -> str:
        async with dashboard(folder / "beam.jsonl", LARGE) as pilot:
            await pilot.press("ctrl+p")
            await pilot.pause(0.3)
            return await settle(pilot)

    palette = asyncio.run(main())
    for command in ("Rules", "Compare", "Where the tokens went", "Copy", "Words and keys", "Next failure"):
        assert command in palette


def test_a_spread_that_looks_like_one_number_is_not_shown() -> None:
    assert _spread(Expectation(43.5, 43.5, True, (43.5, 43.5))) == ""
    assert _spread(Expectation(43.5, 43.5, True, (41.0, 46.0))) == " (41–46)"
