"""The evaluation of a sweep as a table for people, in text or Markdown, and as JSON or CSV, whose keys are stable."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from qpdsl.errors import shorten
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS
from qpdsl.planner.values.value import plain
from qpdsl.runs.answer_metrics import choice_json, metric_label
from qpdsl.runs.evaluation import CellResult, SweepEvaluation
from qpdsl.runs.plots import text_plot as plot_lines

_NONE = "–"
# The columns whose texts stand at the left; figures stand at the right.
_LEFT = ("program", "parameters", "metric", "95% interval")

_VERSION = 1
_COLUMNS = (
    "program", "parameters", "problems", "seeds", "failed", "unanswered", "unfinished", "accuracy", "low", "high",
    "tokens", "tokens_in", "seconds", "front_tokens", "front_seconds", "difference", "difference_low",
    "difference_high", "p_value",
)  # fmt: skip


def text_lines(evaluation: SweepEvaluation, width: int = 80) -> list[str]:
    """The table, what its marks mean, groups, and a plot of accuracy against tokens in at most `width` columns."""
    lines = [_title(evaluation), "", *_aligned(_table(evaluation))]
    lines += ["", *notes(evaluation)]
    for title, table in _more_tables(evaluation).items():
        lines += ["", title, "", *_aligned(table)]
    if evaluation.baseline is not None and len(evaluation.results) > 1:
        lines += ["", *plot_lines(evaluation.scatter(), width)]
    return lines


def markdown_lines(evaluation: SweepEvaluation) -> list[str]:
    """The same tables in Markdown as GitHub has it, and the notes."""
    lines = [_title(evaluation), "", *_markdown(_table(evaluation)), ""]
    lines += [f"{note}  " for note in notes(evaluation)]
    for title, table in _more_tables(evaluation).items():
        lines += ["", f"{title[0].upper()}{title[1:]}:", "", *_markdown(table)]
    return lines


def tables(evaluation: SweepEvaluation) -> dict[str, list[list[str]]]:
    """The same tables as texts by their titles: rows, the names of the columns first."""
    return {_title(evaluation): _table(evaluation), **_more_tables(evaluation)}


def _more_tables(evaluation: SweepEvaluation) -> dict[str, list[list[str]]]:
    found = {f"accuracy by {evaluation.by}": _groups(evaluation)} if evaluation.groups else {}
    if any(result.figures.at_k for result in evaluation.results):
        found["accuracy at k samples, with the interval of the largest k"] = _at_k(evaluation)
    return found


def _title(evaluation: SweepEvaluation) -> str:
    problems, seeds = evaluation.problems, len(evaluation.seeds)
    title = f"{evaluation.input}: {problems:,} problem{'s' * (problems != 1)} x {seeds} seed{'s' * (seeds != 1)}"
    return ", ".join([title, *(f"{name}={shorten(value, 24)}" for name, value in _shared(evaluation))])


def _shared(evaluation: SweepEvaluation) -> list[tuple[str, str]]:
    """The settings that all cells have: they stand in the title, and the others with their cells."""
    first, *others = (result.cell.settings for result in evaluation.results)
    return [pair for pair in first if all(pair in settings for settings in others)]


def _table(evaluation: SweepEvaluation) -> list[list[str]]:
    """Rows of cells, the names of the columns first; columns that would be empty are left out."""
    shared = _shared(evaluation)
    rows = [_row(evaluation, result, result.cell.told(shared)) for result in evaluation.results]
    names = [name for name in rows[0] if any(row[name] not in ("", _NONE) for row in rows)]
    return [names, *([row[name] for name in names] for row in rows)]


def _row(evaluation: SweepEvaluation, result: CellResult, parameters: str) -> dict[str, str]:
    figures, interval = result.figures, result.figures.interval
    known = figures.accuracy is not None and interval is not None
    row = {
        "program": result.cell.program,
        "parameters": parameters,
        "failed": f"{figures.failed:,}" if figures.failed else "",
        "no answer": f"{figures.unanswered:,}" if figures.unanswered else "",
        "unfinished": f"{figures.unfinished:,}" if figures.unfinished else "",
        "accuracy": f"{figures.accuracy:.1%}" if known else _NONE,
        "95% interval": f"{interval.low:.1%} to {interval.high:.1%}" if interval is not None else _NONE,
        "tokens": f"{figures.tokens:,.0f}{_mark(result.cheap)}",
        "thought": f"{figures.thought_tokens:,.0f}" if figures.thought_tokens else "",
        "seconds": _NONE if figures.seconds is None else f"{_seconds(figures.seconds)}{_mark(result.quick)}",
    }
    if evaluation.baseline is not None and len(evaluation.results) > 1:
        row |= dict(_against(evaluation, result))
    return row


def _mark(is_on: bool) -> str:
    return " *" if is_on else "  "


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _against(evaluation: SweepEvaluation, result: CellResult) -> Iterator[tuple[str, str]]:
    """The columns that compare with the baseline, in points of accuracy."""
    paired = result.against
    if paired is None:
        yield from (("points", "baseline" if result.cell == evaluation.baseline else _NONE), ("p", ""))
        return
    interval = paired.interval
    points, low, high = map(signed_points, (paired.difference, interval.low, interval.high))
    yield "points", f"{points} ({low} to {high})"
    yield "p", "<0.001" if paired.p_value < 0.001 else f"{paired.p_value:.3f}"


def signed_points(share: float) -> str:
    """A difference of shares in percentage points, never as a negative nothing."""
    text = f"{share * 100:+.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def notes(evaluation: SweepEvaluation) -> Iterator[str]:
    """What the marks and the columns of the table mean, a line each."""
    seconds = " seconds: of the engine, a problem." if _has_seconds(evaluation) else ""
    thinks = any(result.figures.thought_tokens for result in evaluation.results)
    thought = " thought: those of them that are thoughts." if thinks else ""
    yield f"tokens: sampled, a problem.{thought}{seconds}"
    if evaluation.baseline is None:
        yield "No row says what its right answer is, so there is no accuracy."
        return
    yield "*: on the front; no other cell is as right for less."
    if len(evaluation.results) > 1:
        yield f"points: more right than {evaluation.baseline.name}, on the same problems, with the 95% interval."


def _has_seconds(evaluation: SweepEvaluation) -> bool:
    return any(result.figures.seconds is not None for result in evaluation.results)


def _groups(evaluation: SweepEvaluation) -> list[list[str]]:
    parameters = [result.cell.told(_shared(evaluation)) for result in evaluation.results]
    named = any(parameters)
    rows = [["program", *["parameters"] * named, *evaluation.groups]]
    for result, own in zip(evaluation.results, parameters, strict=True):
        shares = [result.groups.get(group) for group in evaluation.groups]
        texts = [_NONE if share is None else f"{share:.1%}" for share in shares]
        rows.append([result.cell.program, *[own] * named, *texts])
    return rows


def _at_k(evaluation: SweepEvaluation) -> list[list[str]]:
    """A row for each cell and metric, a column for each number of samples."""
    numbers = sorted({own.k for result in evaluation.results for own in result.figures.at_k})
    rows = [["program", "parameters", "metric", *(f"k={k}" for k in numbers), "95% interval"]]
    for result in evaluation.results:
        first = [result.cell.program, result.cell.told(_shared(evaluation))]
        for metric in dict.fromkeys(own.metric for own in result.figures.at_k):
            own = {found.k: found for found in result.figures.at_k if found.metric == metric}
            between = own[max(own)].interval
            shares = [f"{own[k].accuracy:.1%}" if k in own else "" for k in numbers]
            rows.append([*first, metric_label(metric), *shares, f"{between.low:.1%} to {between.high:.1%}"])
    named = any(row[1] for row in rows[1:])
    return rows if named else [[program, *rest] for program, _, *rest in rows]


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    names, *_ = table
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        padded = []
        for name, text, width in zip(names, row, widths, strict=True):
            # A mark stands behind its figure, so the name of such a column ends where figures do.
            shown = f"{text}  " if number == 0 and name in ("tokens", "seconds") else text
            padded.append(f"{shown:<{width}}" if name in _LEFT else f"{shown:>{width}}")
        yield "  ".join(padded).rstrip()


def _markdown(table: Sequence[Sequence[str]]) -> Iterator[str]:
    names, *rows = table
    yield _markdown_row(names)
    yield _markdown_row(["---" if name in _LEFT else "--:" for name in names])
    yield from map(_markdown_row, rows)


def _markdown_row(texts: Sequence[str]) -> str:
    escaped = (text.strip().replace("|", "\\|").replace("*", "\\*") for text in texts)
    return f"| {' | '.join(escaped)} |"


def to_json(evaluation: SweepEvaluation) -> dict[str, Any]:
    """All of it, each cell a record."""
    return {
        "qpdsl_eval": _VERSION,
        "name": evaluation.name,
        "input": evaluation.input,
        "problems": evaluation.problems,
        "seeds": list(evaluation.seeds),
        "baseline": None if evaluation.baseline is None else evaluation.baseline.name,
        "cells": [_cell(evaluation, result) for result in evaluation.results],
    }


def json_text(evaluation: SweepEvaluation) -> str:
    """`to_json`, written on several lines."""
    return json.dumps(to_json(evaluation), ensure_ascii=False, allow_nan=False, indent=2)


def csv_text(evaluation: SweepEvaluation) -> str:
    """A line a cell under the names of the columns; what is not known is empty."""
    file = io.StringIO()
    records = [_cell(evaluation, result) for result in evaluation.results]
    more = (THOUGHT_TOKENS,) if any(THOUGHT_TOKENS in record for record in records) else ()
    writer = csv.DictWriter(file, (*_COLUMNS, *more), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for result, record in zip(evaluation.results, records, strict=True):
        writer.writerow({**record, **(record["against"] or {}), "parameters": result.cell.told()})
    return file.getvalue().removesuffix("\n")


def begins_evaluation(file: BinaryIO) -> bool:
    """Whether an open file holds an evaluation in one of its formats, as far as its beginning tells."""
    start = file.read(4000).decode(errors="replace")
    if start.startswith("{"):
        return start[1:].lstrip().startswith('"qpdsl_eval"')
    if start.startswith(",".join(_COLUMNS)):
        return True
    # Text and Markdown begin with the same title.
    lines = start.split("\n")
    title, *rest = lines
    is_titled = " problem" in title and " seed" in title and " x " in title
    return is_titled and len(rest) > 1 and rest[1].lstrip("| ").startswith("program")


def _cell(evaluation: SweepEvaluation, result: CellResult) -> dict[str, Any]:
    figures, interval, paired = result.figures, result.figures.interval, result.against
    record = {
        "program": result.cell.program,
        "parameters": dict(result.cell.settings),
        "choice": result.cell.choice or None,
        "problems": figures.problems,
        "seeds": figures.seeds,
        "failed": figures.failed,
        "unanswered": figures.unanswered,
        "unfinished": figures.unfinished,
        "accuracy": figures.accuracy,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "tokens": figures.tokens,
        **({THOUGHT_TOKENS: figures.thought_tokens} if figures.thought_tokens else {}),
        "tokens_in": figures.tokens_in,
        "seconds": figures.seconds,
        "front_tokens": result.cheap,
        "front_seconds": result.quick,
        "against": None
        if paired is None
        else {
            "difference": paired.difference,
            "difference_low": paired.interval.low,
            "difference_high": paired.interval.high,
            "p_value": paired.p_value,
            "gained": paired.gained,
            "lost": paired.lost,
        },
        "groups": dict(result.groups) if evaluation.by is not None else None,
        **({"at_k": choice_json(figures.at_k)} if figures.at_k else {}),
        "runs": list(result.runs),
    }
    return {name: plain(value) for name, value in record.items()}
