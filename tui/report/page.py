"""The page: a template, a style sheet and a script in one file, with the run's data in it.

That has few enough points that a browser draws them at once, however long the run was.
"""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, BinaryIO

from qpdsl.executor.events import events
from qpdsl.executor.events.events import EngineFigures, Event
from qpdsl.grammar.printable import one_line, printable
from qpdsl.tui.report.template import filled, part
from qpdsl.tui.screens.candidate import FATES, name, verdict_lines
from qpdsl.tui.screens.engine import TIME_WORDS, shortage_text
from qpdsl.tui.screens.plan import decided, estimate_text, per_problem, time_share
from qpdsl.tui.screens.plan_boxes import failure_text
from qpdsl.tui.screens.rows import SIGNS, lost
from qpdsl.tui.screens.verifier import verifier_lines
from qpdsl.tui.state.compare import interval
from qpdsl.tui.state.decisions import effects, kept_or_thrown
from qpdsl.tui.state.run_state import RowState, RunState
from qpdsl.tui.state.search import Key, SearchTree
from qpdsl.tui.state.verdict import fall_of
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.bars import cost
from qpdsl.tui.widgets.palette import NO_COLOURS

# So many reasons of failures are listed.
_GROUPS = 5
_MARK = b'<meta name="generator" content="qpdsl">'
_HEAD = 1024
_TREES = 24
_NODES = 600
_STEPS = 4000
_ROWS = 2000


def begins_page(file: BinaryIO) -> bool:
    """Whether an open file is such a page."""
    return _MARK in file.read(_HEAD)


def page(events: Iterable[Event], notes: Sequence[str], file: str) -> str:
    """One HTML file that loads nothing."""
    return drawn_page(report_data(events, notes), file)


def drawn_page(data: dict[str, Any], file: str, *, live: bool = False) -> str:
    """The page of these data; one that is `live` asks the server that it came from for newer ones."""
    # No text of a model may end the script that it stands in. Escapes keep the data as it is.
    embedded = printable(json.dumps(data, ensure_ascii=False, separators=(",", ":"))).replace("<", "\\u003c")
    values = {
        "connect": " connect-src 'self';" if live else "",
        "title": html.escape(one_line(f"{data['program']} · {file}")),
        "style": part("report.css"),
        "live": "live" if live else "",
        "data": embedded,
        "script": part("report.js"),
    }
    return filled(part("report.html"), values)


class ReportedRun:
    """A run as the page draws it: its state, and the steps of its models."""

    def __init__(self) -> None:
        self.state = RunState()
        self._steps: list[list[Any]] = []

    def add(self, event: Event) -> None:
        self.state.add(event)
        if isinstance(event, events.EngineStepped):
            report = event.report
            assert isinstance(report, EngineFigures)
            seconds = report.others.get("seconds", 0.0)
            sequences = report.others.get("sequences", 0.0)
            step = [report.model, event.at - seconds, seconds, report.prefill_tokens, report.decode_tokens, sequences]
            self._steps.append(step)
            if len(self._steps) > 2 * _STEPS:
                self._steps = _merged(self._steps)

    @property
    def steps(self) -> list[list[Any]]:
        """Steps as (model, begin, seconds, prefill, decode, sequences); of too many, neighbours become one."""
        steps = self._steps
        while len(steps) > _STEPS:
            steps = _merged(steps)
        return [[model, round(at, 4), round(seconds, 5), *rest] for model, at, seconds, *rest in steps]


def report_data(recording: Iterable[Event], notes: Sequence[str]) -> dict[str, Any]:
    """Everything that the page draws of a run."""
    recorded = ReportedRun()
    for event in recording:
        recorded.add(event)
    return page_data(recorded, notes, "cut off")


def page_data(recording: ReportedRun, notes: Sequence[str], open_end: str) -> dict[str, Any]:
    """Everything that the page draws so far; `open_end` is the phase of a run that has not ended."""
    state = recording.state
    begun = state.begun
    shortage = state.shortage
    return {
        "program": begun.program if begun else "a run",
        "phase": state.phase if state.ended else open_end,
        "error": state.ended.error if state.ended else None,
        "seconds": round(state.now, 3),
        "notes": list(notes),
        "facts": _facts(state),
        "plan": _plan(state),
        "time": [[TIME_WORDS[name], round(share, 4)] for name, share in state.time_shares.items()],
        "short": None if shortage is None else shortage_text(shortage),
        "verifier": [line.plain.strip() for line in verifier_lines(state, NO_COLOURS)] if state.judged else [],
        "steps": recording.steps,
        "models": _models(state),
        "rows": _rows(state),
        "accuracy": _accuracy(state),
        "trees": _trees(state),
        "signs": {status: sign for status, (sign, _) in SIGNS.items()},
        "fates": {fate: [sign, word] for fate, (sign, word, _) in FATES.items()},
    }


def _facts(state: RunState) -> list[tuple[str, str]]:
    begun, plan = state.begun, state.plan
    rows = [row for row in state.rows.values() if row.ended is not None]
    facts = [("rows", f"{len(rows):,} of {state.total:,}")]
    if state.failed:
        facts.append(("failed", f"{state.failed:,}"))
    if state.unanswered:
        facts.append(("no answer", f"{state.unanswered:,}"))
    if state.late:
        facts.append(("late", f"{state.late:,} after the deadline"))
    if state.judged:
        sure = interval(state.right, state.judged)
        between = f"{figures.share(sure.low)} to {figures.share(sure.high)}"
        share = figures.share(state.right / state.judged)
        facts.append(("right", f"{state.right:,} of {state.judged:,} ({share}, {between})"))
        if any(row.greedy_correct is not None for row in rows):
            share = figures.share(state.greedy_right / state.judged)
            facts.append(("greedy", f"{state.greedy_right:,} of {state.judged:,} ({share})"))
    prompt, sampled = sum(row.prompt_tokens for row in rows), sum(row.sampled_tokens for row in rows)
    facts.append(("tokens", f"{prompt:,} in, {sampled:,} out"))
    if fates := kept_or_thrown(state):
        whole = sum(spent for _, spent in fates)
        facts.append(("of the sampled", ", ".join(f"{figures.share(spent / whole)} {word}" for word, spent in fates)))
    facts.append(("time", figures.clock(state.now)))
    if money := cost(state):
        facts.append(("cost", money.removeprefix("cost ")))
    for group in state.failures[:_GROUPS]:
        facts.append((f"{len(group.rows):,}×", failure_text(state, group.operator, group.reason)))
    facts += [(f"rule {effect.name}", effect.words) for effect in effects(state) if effect.words]
    if plan is not None:
        facts += [(f"model {name}", model) for name, model in plan.models.items()]
        facts.append(plan.permits)
    if begun is not None:
        began = datetime.fromtimestamp(begun.wall).astimezone().isoformat(" ", "seconds")
        facts += [("began", began)] if begun.wall else []
        facts += [("seed", str(begun.seed)), ("device", begun.device), ("version", begun.version)]
    return facts


def _plan(state: RunState) -> list[dict[str, Any]]:
    lines = []
    for line in state.plan.lines if state.plan else ():
        totals = state.totals(line.id)
        lines.append(
            {
                "branch": line.branch,
                "text": line.text,
                "how": line.implementation if line.implementation != "rows" else "",
                "rule": ", ".join(line.rules),
                "decisions": decided(state, line) if line.id else "",
                "rows": per_problem(state, totals.rows_out) if line.id else "",
                "estimate": estimate_text(state, line) if line.id else "",
                "tokens": figures.count(totals.tokens) if totals.tokens else "",
                "cached": "" if totals.cached_share is None else figures.share(totals.cached_share),
                "seconds": f"{totals.seconds:.2f}" if line.id and not line.holds else "",
                "share": time_share(state, line),
            }
        )
    return lines


def _merged(steps: list[list[Any]]) -> list[list[Any]]:
    """Pairs of neighbouring steps of the same model as one."""
    by_model: dict[str, list[list[Any]]] = {}
    for step in steps:
        by_model.setdefault(step[0], []).append(step)
    merged = []
    for own in by_model.values():
        for at in range(0, len(own), 2):
            first, second = own[at], own[min(at + 1, len(own) - 1)]
            if first is second:
                merged.append(first)
            else:
                end = second[1] + second[2]
                merged.append(
                    [
                        first[0],
                        first[1],
                        end - first[1],
                        first[3] + second[3],
                        first[4] + second[4],
                        max(first[5], second[5]),
                    ]
                )
    return sorted(merged, key=lambda step: step[1])


def _models(state: RunState) -> list[dict[str, Any]]:
    return [
        {
            "name": model.name,
            "pages": model.latest.pages,
            "most": model.most_pages,
            "preemptions": model.latest.preemptions,
            "first_token": list(model.first_token),
            "between_tokens": list(model.between_tokens),
            "width": model.series.width,
            "held": [bucket.pages for bucket in model.series.buckets],
            "decode": [round(bucket.decode / model.series.width) for bucket in model.series.buckets],
            "prefill": [round(bucket.prefill / model.series.width) for bucket in model.series.buckets],
        }
        for model in state.models.values()
    ]


def _rows(state: RunState) -> list[list[Any]]:
    return [
        [row.id, row.status, row.answer or "", row.reference or "", lost(row), row.score, row.tokens, row.seconds, why]
        for row in list(state.rows.values())[:_ROWS]
        for why in ["" if row.why is None else failure_text(state, row.failed_in, row.why)]
    ]


def _accuracy(state: RunState) -> list[dict[str, Any]]:
    """Rows with a right answer in up to ten groups by the tokens sampled for them."""
    rows = sorted((row for row in state.rows.values() if row.correct is not None), key=lambda row: row.sampled_tokens)
    count = min(10, max(len(rows) // 8, min(len(rows) // 2, 4), min(len(rows), 1)))
    groups = []
    for at in range(count):
        group = rows[at * len(rows) // count : (at + 1) * len(rows) // count]
        groups.append(
            {
                "tokens": statistics.mean(row.sampled_tokens for row in group),
                "right": sum(row.correct is True for row in group) / len(group),
                "greedy": sum(row.greedy_correct is True for row in group) / len(group)
                if any(row.greedy_correct is not None for row in group)
                else None,
                "rows": len(group),
            }
        )
    return groups


def _trees(state: RunState) -> list[dict[str, Any]]:
    """The trees of rows that failed or are wrong come first, since people look for these."""
    order = {"failed": 0, "wrong": 1}
    names = sorted(state.trees, key=lambda name: order.get(state.rows[name].status if name in state.rows else "", 2))
    trees = []
    for row_id in names[:_TREES]:
        row = state.rows.get(row_id)
        trees.append(
            {
                "row": row_id,
                "status": row.status if row else "",
                "asked": row.asked if row else "",
                "answer": (row.answer or "") if row else "",
                "reference": (row.reference or "") if row else "",
                "said": [line.plain.strip() for line in verdict_lines(state, row_id, NO_COLOURS)],
                "nodes": _nodes(state, state.trees[row_id], row),
            }
        )
    return trees


def _nodes(state: RunState, tree: SearchTree, row: RowState | None) -> list[list[Any]]:
    """Nodes as (place, round, score, its part of the round's scores, fate, text, mark), parents first."""
    lost = None if row is None or row.lost is None else row.lost.node
    fall = fall_of(tree) if row is not None and row.correct is False else None
    places: dict[Key, list[int]] = {tree.root.key: []}
    shown: list[list[Any]] = []
    waiting = [tree.root]
    while waiting and len(shown) < _NODES:
        above = waiting.pop(0)
        for number, node in enumerate(above.children):
            places[node.key] = [*places[above.key], number]
            text = node.record.step.strip() or name(node, state.plan)
            mark = "lost here" if node is lost else "went wrong here" if fall and node is fall.node else ""
            shown.append([places[node.key], node.round, node.score, tree.part(node), tree.fate(node), text, mark])
        waiting += above.children
    return shown[:_NODES]
