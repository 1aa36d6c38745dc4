"""Programs and plans as HTML for notebooks: trees that fold, without scripts, in the colours of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape as escape_markup
from typing import Any

from qpdsl.grammar.printable import printable
from qpdsl.planner.explain.plan import explain_json, notes, summary
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.evaluation import SweepEvaluation
from qpdsl.runs.evaluation_text import notes as table_notes
from qpdsl.runs.evaluation_text import tables
from qpdsl.runs.plots import svg

_MONO = "font-family:ui-monospace,monospace;font-size:0.92em;line-height:1.5"
_INDENT = "margin-left:0.4em;padding-left:1em;border-left:1px solid rgba(128,128,128,0.4)"
_FAINT = "opacity:0.65"


def program_html(head: str, text: str, plan: PhysicalPlan | None) -> str:
    """A program: its head, its plan, and below it its text, folded. Without a model there is no plan yet."""
    shown = f'<pre style="margin:0.3em 1em">{_escape(text)}</pre>'
    tree = "" if plan is None else _plan(plan)
    folded = f'<details><summary style="{_FAINT}">text</summary>{shown}</details>'
    return f'<div style="{_MONO}"><b>{_escape(head)}</b>{tree}{folded}</div>'


def plan_html(plan: PhysicalPlan) -> str:
    """A plan: the operators in the order in which they run, those of a loop or a branch inside it."""
    tree = f"<details open><summary>{_escape(summary(plan))}</summary>{_plan(plan)}</details>"
    return f'<div style="{_MONO}">{tree}</div>'


def evaluation_html(evaluation: SweepEvaluation) -> str:
    """The tables of an evaluation, what their marks mean, and the plot of accuracy against tokens."""
    shown = "".join(f"<div>{_escape(title)}</div>{_table(table)}" for title, table in tables(evaluation).items())
    lines = "".join(f"<div>{_escape(line)}</div>" for line in table_notes(evaluation))
    plot = svg(evaluation.scatter()) if evaluation.baseline is not None else ""
    return f'<div><div style="{_MONO}">{shown}<div style="{_FAINT}">{lines}</div></div>{plot}</div>'


def _table(table: list[list[str]]) -> str:
    names, *rows = table
    head = "".join(f"<th>{_escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _plan(plan: PhysicalPlan) -> str:
    """The tree, and below it what the plan decides by where it has a budget."""
    budget = notes(plan)[0]
    lines = "".join(f"<div>{_escape(line)}</div>" for line in budget.splitlines())
    tree = _tree(explain_json(plan)["operators"])
    return f'{tree}<div style="{_INDENT};{_FAINT}">{lines}</div>' if lines else tree


def _tree(operators: list[dict[str, Any]]) -> str:
    return f'<div style="{_INDENT}">{"".join(map(_operator, operators))}</div>'


def _operator(operator: Mapping[str, Any]) -> str:
    line = f'{_escape(operator["text"])} <span style="{_FAINT}">{_escape(_facts(operator))}</span>'
    inner = "".join(f"{_name(name)}{_tree(part)}" for name, part in _parts(operator))
    if not inner:
        return f"<div>{line}</div>"
    return f"<details open><summary>{line}</summary>{inner}</details>"


def _parts(operator: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The plans inside an operator with their names: the body of a loop, which has none, the arms of a branch."""
    if operator["body"]:
        yield "", operator["body"]
    yield from zip(operator["arm_names"], operator["arms"], strict=True)


def _name(name: str) -> str:
    return f'<div style="{_FAINT}">{_escape(name)}</div>' if name else ""


def _facts(operator: Mapping[str, Any]) -> str:
    rows = operator["rows"]
    count = "? rows" if rows is None else "1 row" if rows == 1 else f"{rows:,} rows"
    how = operator["implementation"]
    return count if how == "rows" else f"{count} · {how}"


def _escape(text: str) -> str:
    """A text as a page shows it: no markup, and nothing that turns the direction of writing."""
    return escape_markup(printable(text))
