"""What people ask of a run, read off its page without any script: as it is printed, read out, or shown on a phone.

The runs are those of the dashboard's questions. The page of a run that goes on answers what is about now, too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.events.events import InputListed, OperatorDone, RowDone, RunEnded, RunSaved
from qpdsl.tui.report.page import ReportedRun
from qpdsl.tui.report.page import page as page_of_events
from qpdsl.tui.state.compare import OtherName, OtherRow, OtherRun
from tests.support.tui.read_page import Page
from tests.support.tui.traces import recorded, when_busy


@cache
def page_of(name: str, part: float = 1.0) -> Page:
    """The page of a recorded run, or of the first part of its time while it went on."""
    events = recorded(name)
    reported = ReportedRun()
    for event in events:
        if event.at <= part * events[-1].at:
            reported.add(event)
    if part < 1:
        reported.open_end = reported.state.phase
    return Page.of(reported.page("a run", live=part < 1))


def told(name: str, section: str = "", part: float = 1.0) -> str:
    """The text of a section, or of all of them."""
    page = page_of(name, part)
    return "\n".join(page.parts.get(section, []) if section else page.lines)


def fact(name: str, word: str, part: float = 1.0) -> str:
    """The figure at the top of the page with this name."""
    top = page_of(name, part).parts[""]
    return top[top.index(word) + 1]


def test_1_how_long_still() -> None:
    assert re.fullmatch(r"\d:\d\d–\d:\d\d", fact("beam", "left", 0.85))
    assert "running" in told("beam", part=0.85) and "left" not in page_of("beam").parts[""]


def test_2_how_well_and_how_sure() -> None:
    assert re.fullmatch(r"\d of 6 \(\d+%, \d+% to \d+%\)", fact("beam_search", "right"))
    assert re.fullmatch(r"\d of 6 \(\d+%\)", fact("beam_search", "greedy"))


def test_3_what_is_slow() -> None:
    (hot,) = [row for row in page_of("beam", 0.85).table("Plan") if row["operator"].endswith("hot")]
    assert "generate llm" in hot["operator"] and float(hot["share"].strip("% ")) > 50
    assert fact("beam", "now", 0.85).endswith("tok/s")


def test_4_whether_the_engine_is_busy_and_what_it_waits_for() -> None:
    shares = dict(
        re.findall(r"(decode|prefill|verifier|Python|idle) ([\d.]+)%", told("beam_search", "Where the time went"))
    )
    assert shares.keys() >= {"decode", "prefill", "verifier", "Python"}
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=2)
    assert "waits for server" in told("server", "Where the time went")


def test_5_whether_memory_is_short_and_what_helps() -> None:
    short = told("self_consistency", "Where the time went")
    assert re.search(r"memory is short: \d+ sequences gave way.*give about [\d,]+ MiB more with --kv-memory", short)
    assert "short" not in told("beam_search", "Where the time went")


def test_6_why_a_row_failed() -> None:
    (row,) = [row for row in page_of("beam").table("Rows") if "failed" in row["status"]]
    assert re.search(r"generate: the context has \d+ tokens, zoo/counting takes \d+", row["failed"])


def test_7_whether_many_fail_for_one_reason() -> None:
    (group,) = page_of("beam").table("Failures")
    assert group["rows"] == "1×" and group["where and why"].startswith("generate: the context has")
    assert group["which"] == "too-long"
    (unanswered,) = page_of("server").table("Failures")
    assert unanswered["rows"] == "4×" and "no row is left" in unanswered["where and why"]


def test_8_where_the_tokens_went() -> None:
    rows = page_of("beam_search").table("Where the tokens went")
    by = {row["by"]: row for row in rows}
    tokens = {name: int(row["tokens"].replace(",", "")) for name, row in by.items()}
    rounds = sum(value for name, value in tokens.items() if name.startswith("round"))
    operators = sum(value for name, value in tokens.items() if name.startswith(("generate", "score")))
    assert rounds == operators > 0
    shares = [float(by[word]["share"].strip("% ")) for word in ("in the answer", "kept beside it", "thrown away")]
    assert sum(shares) == pytest.approx(100, abs=2) and "zoo/counting-prm" in tokens
    assert re.search(r"by the small one \d+ .*of \d+ draws stood", told("filter_decoding", "Where the tokens went"))


def test_9_what_a_rule_saved() -> None:
    saved = {row["rule"]: row["saved"] for row in page_of("beam_search").table("Rules")}
    assert re.search(r"saved [\d,]+ of [\d,]+ prompt tokens, about [\d.]+ s", saved["share_prefixes"])
    forced = {row["rule"]: row["saved"] for row in page_of("constrained_json").table("Rules")}
    assert re.search(r"saved \d+ forwards, about [\d.]+ s", forced["jump_forward"])


def test_10_how_far_off_the_estimate_was() -> None:
    rows = {row["operator"]: row["estimate"] for row in page_of("puct").table("Plan")}
    (scored,) = [estimate for operator, estimate in rows.items() if "score prm" in operator]
    assert scored and "≤" not in scored


def test_11_which_step_went_wrong() -> None:
    shown = told("beam_search", "Search")
    assert re.search(r"went wrong at step 3 of 3: 1\.000 → 0\.0\d\d, the first below 0\.5", shown)
    assert re.search(r"^.*went wrong here", shown, re.M)


def test_12_whether_the_right_answer_was_there_and_lost() -> None:
    assert any(re.fullmatch(r"lost, \d+ of 16", row["had it"]) for row in page_of("best_of_n_logprob").table("Rows"))
    shown = told("best_of_n_logprob", "Search")
    place = re.search(r"place (\d+) of 16, 1 kept; width (\d+) would have kept it", shown)
    assert place is not None and place[1] == place[2] and re.search("right +lost here", shown)


def test_13_whether_wider_would_have_helped() -> None:
    assert re.search(r"margin at the cut.*right answers \d+ of 16, \d+ cut", told("best_of_n_logprob", "Search"))
    shown = told("best_of_n_logprob", "Verifier")
    curve = [float(share) for share in re.findall(r"\d+: ([\d.]+)%", shown)]
    assert len(curve) == 5 and curve == sorted(curve) and re.search(r"width \d+ keeps 1", shown)


def test_14_whether_the_verifier_is_good() -> None:
    good, bad = told("beam_search", "Verifier"), told("best_of_n_logprob", "Verifier")
    auc = re.search(r"AUC ([\d.]+)", good)
    assert auc is not None and float(auc[1]) > 0.9 and "calibration off by" in good
    assert re.search(r"pairs ranked right, \d+ ties", bad) and re.search(r"misled [1-9]", bad)


def test_15_how_the_vote_stood() -> None:
    shown = told("self_consistency", "Search")
    assert re.search(r"vote (decided after \d+ of 32|open until the last of 32, lead \d+) \S+ ×\d+ · ", shown)


def test_16_what_filter_exit_and_drafts_decide() -> None:
    def decided(name: str) -> str:
        return " ".join(row.get("decisions", "") for row in page_of(name).table("Plan"))

    assert re.search(r"small \d+%", decided("filter_decoding"))
    assert re.search(r"forced \d+%", decided("constrained_json"))
    assert re.search(r"exits \d+% · differs [\d.]+%", decided("early"))


def test_17_what_it_costs_and_what_is_sent_again() -> None:
    assert re.fullmatch(r"0\.0\d+ of 5", fact("server", "cost"))
    (server,) = page_of("server").table("Servers")
    assert re.fullmatch(r"[1-9]\d* sent again", server["sent again"]) and int(server["requests"]) > 32
    (waits,) = page_of("server", when_busy() + 0.001).table("Servers")
    assert re.search(r"\d+ now waiting: .*429.*, next in [\d.]+ m?s", waits["sent again"])


class Others:
    """One saved run of the program, which had no row right."""

    def names(self) -> list[OtherName]:
        return [OtherName("broken", "beam_search", 6, 0, 6), OtherName("run-1", "beam_search", 6, 0, 6)]

    def read(self, name: str) -> OtherRun:
        if name == "broken":
            raise OSError("no such run")
        begun = next(event for event in recorded("beam_search") if isinstance(event, InputListed))
        rows = {id: OtherRow(id, asked, "7", False, 100) for id, asked in zip(begun.ids, begun.asked, strict=True)}
        return OtherRun(name, rows, (("return answer", ""),), {"seed": "7"})


def test_18_whether_it_is_better_than_the_last() -> None:
    page = Page.of(page_of_events(recorded("beam_search"), [], "a run", Others()))
    shown = "\n".join(page.parts["Beside the last run"])
    assert re.search(r"with run-1 \+\d+\.\d points \(.* to .*\), p = [\d.]+ 6 in common: \d gained, 0 lost", shown)
    assert re.search(r"[1-9]\d* operators of the plan changed", shown) and "seed 0, there 7" in shown
    changed = page.table("Rows that changed")
    assert {"gained", "other answer"} == {row["what"] for row in changed} and all(
        row["there"] == "7" for row in changed
    )
    assert "Beside the last run" not in page_of("beam_search").parts


def test_18_a_run_is_not_set_beside_itself() -> None:
    """One that is gone on with has rows among the saved runs before its trace says which of them it is."""
    reported = ReportedRun(Others())
    for event in recorded("beam_search"):
        reported.add(replace(event, run="run-1") if isinstance(event, RunSaved) else event)
        if isinstance(event, InputListed | RunEnded):
            assert "Beside the last run" not in reported.main


def test_greedy_s_share_is_of_the_rows_on_which_it_was_judged() -> None:
    some = [
        replace(event, greedy_correct=True if number % 2 else None) if isinstance(event, RowDone) else event
        for number, event in enumerate(recorded("beam_search"))
    ]
    shares = {row["greedy"] for row in Page.of(page_of_events(some, [], "a run")).table("Accuracy by tokens")}
    assert "100%" in shares and shares <= {"100%", "–"}


def test_rounds_without_a_token_are_left_out() -> None:
    some = [
        replace(event, prompt_tokens=0, cached_tokens=0, sampled_tokens=0) if isinstance(event, OperatorDone) else event
        for event in recorded("beam")
    ]
    assert "round 1" not in "\n".join(Page.of(page_of_events(some, [], "a run")).lines)


def test_19_which_rows_are_stuck() -> None:
    (row,) = page_of("beam", 0.85).table("Rows at work")
    assert row["row"] == "count-010" and row["in"].startswith("generate llm") and row["round"] and row["time"]


def test_20_whether_an_answer_comes_again() -> None:
    assert fact("self_consistency", "again").startswith("the same tokens every time")
    assert "again: the same tokens every time" in told("self_consistency", "Search")
    assert "requests" in fact("server", "again")


@pytest.mark.parametrize("name", ["beam", "server", "self_consistency"])
def test_a_reader_finds_its_way(name: str) -> None:
    """Headings in their order, tables with captions, words for every picture, the keyboard from the top down."""
    page = page_of(name)
    assert page.faults == []
    assert [level for level, _ in page.headings] == [1, *[2] * (len(page.headings) - 1)]
    assert page.focused[0] == "button" and "summary" in page.focused
