"""The parts of a page about one run, or about all of it so far: each answers some of what people ask of a run.

The dashboard's screens are drawn from the same state, and the words of both are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from qpdsl.grammar.printable import one_line
from qpdsl.tui.report.elements import Markup, facts, folded, paragraphs, section, table, text, without_empty
from qpdsl.tui.report.pictures import Forwards, accuracy, memory
from qpdsl.tui.report.search_tree import row_search
from qpdsl.tui.screens.compare import changed_facts, difference_line, plan_words
from qpdsl.tui.screens.engine import TIME, TIME_WORDS, shortage_text
from qpdsl.tui.screens.plan import decided, estimate_text, per_problem, time_share
from qpdsl.tui.screens.plan_boxes import failure_text, retries
from qpdsl.tui.screens.rows import SIGNS, again, lost
from qpdsl.tui.screens.verifier import verifier_lines
from qpdsl.tui.state.compare import OtherRun, compared, interval, plan_changes, plan_lines
from qpdsl.tui.state.decisions import effects, spending
from qpdsl.tui.state.run_state import RowState, RunState
from qpdsl.tui.state.time_spent import SPENT
from qpdsl.tui.state.verdict import Highlights
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.bars import cost
from qpdsl.tui.widgets.palette import NO_COLOURS

# So many are listed of reasons of failures, of rows at work, of words about whether tokens come again.
_GROUPS, _AT_WORK, _AGAIN = 12, 12, 3
_TREES = 24
_ROWS = 2000


def run_parts(state: RunState, forwards: Forwards, last: OtherRun | None) -> Iterator[str]:
    """All parts of the page of a run, but for its head; `last` is the run that it is set beside."""
    yield f'<div data-part="facts">{facts(run_facts(state))}</div>'
    for title, part in (
        ("Failures", failures(state)),
        ("At work", at_work(state)),
        ("Plan", plan(state)),
        ("Where the time went", time_spent(state)),
        ("Where the tokens went", tokens(state)),
        ("Rules", rules(state)),
        ("Servers", servers(state)),
        ("Forwards over time", forwards.picture(state)),
        ("Memory over time", memory(state)),
        ("Accuracy against tokens", accuracy(state)),
        ("Verifier", verifier(state)),
        ("Beside the last run", "" if last is None else beside(state, last)),
        ("Search", _searches(state)),
        ("Rows", rows(state)),
    ):
        if part:
            yield section(title, part)


def run_facts(state: RunState) -> list[tuple[str, str]]:
    """How far, how well and how sure, for how much; what it ran."""
    told = [*progress_facts(state)]
    ended = [row for row in state.rows.values() if row.ended is not None]
    prompt, sampled = sum(row.prompt_tokens for row in ended), sum(row.sampled_tokens for row in ended)
    told.append(("tokens", f"{prompt:,} in, {sampled:,} out"))
    repeats = Counter(again(state, row) for row in ended)
    told += [("again", f"{words} ({count:,} rows)") for words, count in repeats.most_common(_AGAIN)]
    if state.plan is not None:
        told += [(f"model {name}", model) for name, model in state.plan.models.items()]
        told.append(state.plan.permits)
    if (begun := state.begun) is not None:
        began = datetime.fromtimestamp(begun.wall).astimezone().isoformat(" ", "seconds")
        told += [("began", began)] if begun.wall else []
        told += [("seed", str(begun.seed)), ("device", begun.device), ("version", begun.version)]
    return told


def progress_facts(state: RunState) -> Iterator[tuple[str, str]]:
    """How far it is, how long still, how well it does and how sure that is, and what it costs."""
    yield "rows", f"{sum(row.ended is not None for row in state.rows.values()):,} of {state.total:,}"
    if not state.replayed:
        yield "time", figures.clock(state.now)
    if state.ended is None and (left := state.left(state.now)) is not None:
        ends = state.left_between(state.now) or (left,)
        yield "left", "–".join(dict.fromkeys(figures.clock(seconds) for seconds in ends))
    if state.ended is None and (state.models or state.servers):
        yield "now", f"{figures.count(state.rate())} tok/s"
    if state.failed:
        yield "failed", f"{state.failed:,}"
    if state.unanswered:
        yield "no answer", f"{state.unanswered:,}"
    if state.late:
        yield "late", f"{state.late:,} after the deadline"
    if state.judged:
        sure, right = interval(state.right, state.judged), figures.share(state.right / state.judged)
        between = f"{figures.share(sure.low)} to {figures.share(sure.high)}"
        yield "right", f"{state.right:,} of {state.judged:,} ({right}, {between})"
    if state.greedy_judged:
        greedy = figures.share(state.greedy_right / state.greedy_judged)
        yield "greedy", f"{state.greedy_right:,} of {state.greedy_judged:,} ({greedy})"
    if money := cost(state):
        yield "cost", money.removeprefix("cost ")
    if state.lost:
        yield "missed", f"{state.lost:,} events: counts are too low"


def failures(state: RunState) -> str:
    """Rows that failed, by operator and reason."""
    groups = [
        [f"{len(group.rows):,}×", failure_text(state, group.operator, group.reason), ", ".join(group.rows[:_GROUPS])]
        for group in state.failures[:_GROUPS]
    ]
    return table("Failures", ["rows", "where and why", "which"], groups, numbers=(0,), wide=(1, 2)) if groups else ""


def at_work(state: RunState) -> str:
    """The rows at work, the longest first, with what they are in."""
    if state.ended is not None:
        return ""
    rows = []
    for row in state.at_work[:_AT_WORK]:
        doing = row.doing
        line = None if state.plan is None or doing is None else state.plan.line(doing.operator)
        place = f"{doing.rounds[-1] + 1}" if doing is not None and doing.rounds else ""
        inside = "" if line is None else one_line(line.text)
        rows.append([row.id, inside, place, figures.clock(state.now - (row.started or 0.0))])
    return (
        table("Rows at work", ["row", "in", "round", "time"], rows, numbers=(2, 3), wide=(1,), small=True)
        if rows
        else ""
    )


def plan(state: RunState) -> str:
    """The operators, last first, with what each did beside what was expected; of rows run again, not what it took."""
    head = ["operator", "rows a problem", "estimate", "tokens", "cached", "seconds", "share", "decisions", "how"]
    rows, hottest = [], None if state.replayed else state.hottest
    for line in state.plan.lines if state.plan else ():
        totals, share = state.totals(line.id), time_share(state, line)
        hot = Markup(" <mark>hot</mark>") if line.id and line.id == hottest else ""
        name = Markup(f'<span class="strokes">{line.branch}</span>{text(one_line(line.text))}{hot}')
        if not line.id:
            rows.append([name, *[""] * (len(head) - 1)])
            continue
        took = [
            "" if totals.cached_share is None else figures.share(totals.cached_share),
            f"{totals.seconds:.2f}" if not line.holds else "",
            "" if share is None else _bar(share),
            decided(state, line),
        ]
        rows.append(
            [
                name,
                per_problem(state, totals.rows_out),
                estimate_text(state, line).rstrip(),
                figures.count(totals.tokens) if totals.tokens else "",
                *([""] * len(took) if state.replayed else took),
                line.implementation if line.implementation != "rows" else "",
            ]
        )
    kept, cells = without_empty(head, rows, 2)
    numbers, wide = ([place for place, at in enumerate(kept) if at in of] for of in (range(1, 6), (7, 8)))
    return table("Plan", [head[at] for at in kept], cells, numbers=numbers, wide=wide, code=(0,)) if rows else ""


def _bar(share: float) -> str:
    return Markup(
        f'<span class="part"><span class="bar" style="width:{3 * share:.2f}em"></span> {figures.share(share)}</span>'
    )


def time_spent(state: RunState) -> str:
    """Where the time went, as one bar and in words, and what memory was short of."""
    shares = state.time_shares
    order = [name for name in SPENT if name in shares]
    words = [f"{TIME_WORDS[name]} {figures.share(shares[name])}" for name in order]
    bar = "".join(f'<span class="fill-{TIME[name][1]}" style="flex:{shares[name]:.4f}"></span>' for name in order)
    keys = "".join(
        f'<li><span class="key {TIME[name][1]}"></span> {word}</li>' for name, word in zip(order, words, strict=True)
    )
    told = f'<div class="time" role="img" aria-label="{", ".join(words)}">{bar}</div><ul class="legend">{keys}</ul>'
    short = "" if state.shortage is None else f'<p class="bad">⚠ {text(shortage_text(state.shortage))}</p>'
    return (told if order else "") + short


def tokens(state: RunState) -> str:
    """By operator, by round, by what became of them, by model."""
    told = [
        [one_line(spent.name), f"{spent.tokens:,}", "" if spent.share is None else _bar(spent.share), spent.of]
        for group in spending(state)
        for spent in group
    ]
    head = ["by", "tokens", "share", "of these"]
    return table("Where the tokens went", head, told, numbers=(1,), wide=(0, 3), small=True) if told else ""


def rules(state: RunState) -> str:
    """What each rule of the plan saved; of rows run again, nothing that the run counted."""
    told = [] if state.replayed else [[effect.name, effect.words or effect.without] for effect in effects(state)]
    return table("Rules", ["rule", "saved"], told, wide=(1,), small=True) if told else ""


def servers(state: RunState) -> str:
    """What is at each server, what it took, and what was sent again and why."""
    told = []
    for name, server in state.servers.items():
        latest = server.latest
        there = f"{latest.in_flight:,} of {latest.limit:,}" if state.ended is None else f"at most {server.most:,}"
        told.append(
            [one_line(name), there, f"{latest.requests:,}", f"{latest.sampled_tokens:,}", retries(server, state.now)]
        )
    head = ["model", "requests there", "requests", "tokens out", "sent again"]
    return table("Servers", head, told, numbers=(2, 3), wide=(0, 4)) if told else ""


def verifier(state: RunState) -> str:
    """Whether scores tell right answers from wrong ones, and whether wider would have helped."""
    said = [line.plain.rstrip() for line in verifier_lines(state, NO_COLOURS)] if state.judged else []
    return f'<div class="said">{paragraphs(said)}</div>' if said else ""


def beside(state: RunState, last: OtherRun) -> str:
    """The difference to another run and how sure it is, what was set up otherwise, and which rows came to what."""
    comparison = compared(state, last)
    if not comparison.pairs:
        return ""
    changes = [change for change in plan_changes(plan_lines(state.plan), last.plan) if change[0] != "="]
    said = [difference_line(comparison, NO_COLOURS).plain, plan_words(len(changes))]
    said += [f"{name} {value}" for name, value in changed_facts(state, last)]
    plans = table("Plans", ["", "here", "there"], [[sign, here or "", there or ""] for sign, here, there in changes])
    told = [
        [pair.here.id, pair.what, pair.here.answer or pair.here.why or "", pair.there.answer, pair.here.reference or ""]
        for pair in comparison.pairs
        if pair.what != "same"
    ]
    rows = table(
        "Rows that changed", ["row", "what", "here", "there", "right answer"], told[:_ROWS], wide=(2, 3), tall=True
    )
    more = (folded("operators that changed", plans) if changes else "") + (rows if told else "")
    return f'<div class="said">{paragraphs(said)}</div>{more}'


def _told(state: RunState) -> list[str]:
    """The rows whose trees are shown: those that people look for come first."""
    order = {"failed": 0, "wrong": 1}
    names = sorted(state.trees, key=lambda id_: order.get(state.rows[id_].status if id_ in state.rows else "", 2))
    return names[:_TREES]


def _searches(state: RunState) -> str:
    """How rows were searched; the most telling one is open: where an answer was lost, or went wrong."""

    def telling(id_: str) -> int:
        lit = Highlights.of(state.trees[id_], state.rows.get(id_))
        return 2 * (lit.lost is not None) + (lit.fell is not None)

    names = _told(state)
    first = max(names, key=telling, default=None)
    return "".join(
        folded(
            _title(state.rows[id_]) if id_ in state.rows else id_,
            _anchored(id_, row_search(state, id_)),
            is_open=id_ == first,
            name=id_,
        )
        for id_ in names
    )


def _anchored(id_: str, shown: str) -> str:
    # A place in what is folded is unfolded by whoever goes there.
    return f'<div id="row-{text(id_)}">{shown}</div>'


def _title(row: RowState) -> str:
    right = f", right {one_line(row.reference)}" if row.correct is False and row.reference is not None else ""
    had = f", {lost(row)}" if row.lost is not None else ""
    return (
        f"{SIGNS[row.status][0]} {row.id} {row.status}: {one_line(row.answer or row.why or figures.NONE)}{right}{had}"
    )


def rows(state: RunState) -> str:
    """All rows. Those whose search is shown lead there."""
    head = ["id", "status", "answer", "right answer", "had it", "greedy", "score", "tokens", "seconds", "failed"]
    searched, told = set(_told(state)), []
    for row in list(state.rows.values())[:_ROWS]:
        sign, shown = SIGNS[row.status][0], text(one_line(row.id))
        told.append(
            [
                Markup(f'<a href="#row-{text(row.id)}">{shown}</a>') if row.id in searched else row.id,
                Markup(f'<span class="part {row.status}">{sign}\u00a0{row.status}</span>'),
                row.answer or "",
                row.reference or "",
                lost(row),
                row.greedy or "",
                "" if row.score is None else figures.score(row.score),
                f"{row.tokens:,}" if row.tokens else "",
                "" if row.seconds is None else f"{row.seconds:.2f}",
                "" if row.why is None else failure_text(state, row.failed_in, row.why),
            ]
        )
    kept, cells = without_empty(head, told, 3)
    numbers, wide = ([place for place, at in enumerate(kept) if at in of] for of in ((6, 7, 8), (2, 9)))
    shown = table("Rows", [head[at] for at in kept], cells, numbers=numbers, wide=wide, tall=True)
    some = f"The first {_ROWS:,} of {len(state.rows):,}. " if len(state.rows) > _ROWS else ""
    box = '<input id="filter" type="search" placeholder="filter" aria-label="filter rows">'
    hint = f'<p class="hint">{some}{box} <span id="shown" aria-live="polite"></span></p>'
    return f'{hint}<div id="rows">{shown}</div>' if told else ""
