"""An `Evaluation` as a table for people, in text or Markdown; `evaluation_records.py` has it for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qpdsl.evaluation.evaluation import CellResult, Evaluation
from qpdsl.plots.text_scatter import lines as plot_lines

_NONE = "–"
# The columns whose texts stand at the left; figures stand at the right.
_LEFT = ("program", "parameters", "95% interval")


def text_lines(evaluation: Evaluation, width: int = 80) -> list[str]:
    """The table, what its marks mean, groups, and a plot of accuracy against tokens in at most `width` columns."""
    lines = [_title(evaluation), "", *_aligned(_table(evaluation))]
    lines += ["", *notes(evaluation)]
    if evaluation.groups:
        lines += ["", f"accuracy by {evaluation.by}", "", *_aligned(_groups(evaluation))]
    if evaluation.baseline is not None and len(evaluation.results) > 1:
        lines += ["", *plot_lines(evaluation.scatter(), width)]
    return lines


def markdown_lines(evaluation: Evaluation) -> list[str]:
    """The same tables in Markdown as GitHub has it, and the notes."""
    lines = [_title(evaluation), "", *_markdown(_table(evaluation)), ""]
    lines += [f"{note}  " for note in notes(evaluation)]
    if evaluation.groups:
        lines += ["", f"Accuracy by {evaluation.by}:", "", *_markdown(_groups(evaluation))]
    return lines


def tables(evaluation: Evaluation) -> dict[str, list[list[str]]]:
    """The same tables as texts by their titles: rows, the names of the columns first."""
    found = {_title(evaluation): _table(evaluation)}
    return {**found, f"accuracy by {evaluation.by}": _groups(evaluation)} if evaluation.groups else found


def _title(evaluation: Evaluation) -> str:
    problems, seeds = evaluation.problems, len(evaluation.seeds)
    return f"{evaluation.input}: {problems:,} problem{'s' * (problems != 1)} x {seeds} seed{'s' * (seeds != 1)}"


def _table(evaluation: Evaluation) -> list[list[str]]:
    """Rows of cells, the names of the columns first; columns that would be empty are left out."""
    rows = [_row(evaluation, result) for result in evaluation.results]
    names = [name for name in rows[0] if any(row[name] not in ("", _NONE) for row in rows)]
    return [names, *([row[name] for name in names] for row in rows)]


def _row(evaluation: Evaluation, result: CellResult) -> dict[str, str]:
    figures, interval = result.figures, result.interval
    known = figures.accuracy is not None and interval is not None
    row = {
        "program": result.cell.program,
        "parameters": result.cell.parameters,
        "failed": f"{figures.failed:,}" if figures.failed else "",
        "accuracy": f"{figures.accuracy:.1%}" if known else _NONE,
        "95% interval": f"{interval.low:.1%} to {interval.high:.1%}" if interval is not None else _NONE,
        "tokens": f"{figures.tokens:,.0f}{_mark(result.cheap)}",
        "seconds": _NONE if figures.seconds is None else f"{_seconds(figures.seconds)}{_mark(result.quick)}",
    }
    if evaluation.baseline is not None and len(evaluation.results) > 1:
        row |= dict(_against(evaluation, result))
    return row


def _mark(is_on: bool) -> str:
    return " *" if is_on else "  "


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _against(evaluation: Evaluation, result: CellResult) -> Iterator[tuple[str, str]]:
    """The columns that compare with the baseline, in points of accuracy."""
    paired = result.against
    if paired is None:
        yield from (("points", "baseline" if result.cell == evaluation.baseline else _NONE), ("p", ""))
        return
    interval = paired.interval
    yield "points", f"{_points(paired.difference)} ({_points(interval.low)} to {_points(interval.high)})"
    yield "p", "<0.001" if paired.p_value < 0.001 else f"{paired.p_value:.3f}"


def _points(share: float) -> str:
    """A difference of shares in percentage points, never as a negative nothing."""
    text = f"{share * 100:+.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def notes(evaluation: Evaluation) -> Iterator[str]:
    """What the marks and the columns of the table mean, a line each."""
    seconds = " seconds: of the engine, a problem." if _has_seconds(evaluation) else ""
    yield f"tokens: sampled, a problem.{seconds}"
    if evaluation.baseline is None:
        yield "No row says what its right answer is, so there is no accuracy."
        return
    yield "*: on the front; no other cell is as right for less."
    if len(evaluation.results) > 1:
        yield f"points: more right than {evaluation.baseline.name}, on the same problems, with the 95% interval."


def _has_seconds(evaluation: Evaluation) -> bool:
    return any(result.figures.seconds is not None for result in evaluation.results)


def _groups(evaluation: Evaluation) -> list[list[str]]:
    rows = [["program", "parameters", *evaluation.groups]]
    for result in evaluation.results:
        shares = [result.groups.get(group) for group in evaluation.groups]
        texts = [_NONE if share is None else f"{share:.1%}" for share in shares]
        rows.append([result.cell.program, result.cell.parameters, *texts])
    return rows


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
