"""A single run: its answer for people, or as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from qpdsl.arguments import ArgumentError, bind, check_options
from qpdsl.cli.exits import Exit, say
from qpdsl.cli.runs.analyzed import analyzing, remember
from qpdsl.cli.runs.options import RunOptions, open_session, watching
from qpdsl.cli.runs.watched import tell_row, watched
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.dataset.outcome import aligned, dumps, outcome, plain, plain_rows, same_answer, shown
from qpdsl.dataset.rows import InputRow
from qpdsl.dataset.run import Work, run_one
from qpdsl.errors import UsageError
from qpdsl.planner.plan.evaluate import Value
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.executor.runtime.run import Result
    from qpdsl.session import Session


def answer(options: RunOptions, work: Work, known: Surroundings, given: Mapping[str, Value]) -> Exit:
    """Runs the program once and prints what it gave."""
    try:
        arguments = bind(work.plan.params, given)
    except ArgumentError as error:
        raise UsageError(str(error), "`--set NAME=VALUE` gives a value, `--input` many rows of them") from error
    check_options(work.plan, arguments)
    row = InputRow(work.plan.name, arguments)
    with watched(work, [row], watching(options)) as events:
        session = open_session(options, work, known, events)
        measured = analyzing(session, work.plan, 1) if options.analyze or options.statistics else None
        result, greedy = run_until_interrupted(_run(session, work, row))
        tell_row(events, row, outcome(row, result, greedy, with_rows=False))
    if measured is not None and options.analyze:
        say(str(measured.done()))
    if measured is not None and options.statistics:
        remember(measured, alone=greedy is None, wanted=options.analyze)
    if options.json:
        click.echo(dumps(_as_json(options, work, result, greedy)))
    elif result.error is None or options.rows:
        click.echo("\n".join(_lines(options, result, greedy)))
    if result.error is not None:
        say(f"error: {result.error}")
        if result.rows and not options.rows:
            say("help: `--rows` shows what was generated")
        return Exit.ROW_FAILED
    return Exit.OK


async def _run(session: Session, work: Work, row: InputRow) -> tuple[Result, Result | None]:
    async with session.running():
        return await run_one(session, work, row)


def _lines(options: RunOptions, result: Result, greedy: Result | None) -> list[str]:
    answer = shown(result.value)
    facts = [("answer", _first_line(answer))]
    if result.score is not None:
        facts.append(("score", f"{plain(result.score)}"))
    facts.append(("tokens", f"{result.prompt_tokens:,} in, {result.sampled_tokens:,} out"))
    if greedy is not None:
        given = _first_line(shown(greedy.value)) if greedy.error is None else f"failed: {greedy.error}"
        facts.append(("greedy", f"{given} ({greedy.sampled_tokens:,} tokens out)"))
    if options.timing:
        facts.append(("seconds", f"{result.seconds:.2f} ({_rate(result):,.0f} tokens/s)"))
    lines = aligned(facts)
    text = str(result.rows[0].columns.get("text") or "")
    if "\n" in answer.strip():
        lines += ["", _shown(answer.strip())]
    same = text.strip() == answer.strip() or (isinstance(result.value, dict) and same_answer(text, result.value))
    if text.strip() and not same:
        lines += ["", _shown(text.strip())]
    if options.rows:
        for number, columns in enumerate(plain_rows(result.rows), 1):
            lines += ["", f"row {number}", *_row(columns)]
    return lines


def _row(columns: Mapping[str, Value]) -> list[str]:
    """Every column of a row, indented, the further lines of a text under its first."""
    width = max(map(len, columns)) + 4
    texts = {name: _shown(shown(value).strip()).replace("\n", "\n" + " " * width) for name, value in columns.items()}
    return aligned((f"  {name}", text) for name, text in texts.items())


def _as_json(options: RunOptions, work: Work, result: Result, greedy: Result | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "program": work.plan.name,
        "answer": plain(result.value),
        "score": None if result.score is None else plain(result.score),
        "tokens_in": result.prompt_tokens,
        "tokens_out": result.sampled_tokens,
        "near_ties": result.near_ties,
        "text": result.rows[0].columns.get("text") if result.rows else None,
    }
    if greedy is not None:
        found["greedy"] = {"answer": plain(greedy.value), "tokens_out": greedy.sampled_tokens}
    if result.error is not None:
        found["error"] = result.error
    if options.timing:
        found |= {"seconds": round(result.seconds, 3), "tokens_per_second": round(_rate(result), 1)}
    if options.rows:
        found["rows"] = plain_rows(result.rows)
    return found


def _rate(result: Result) -> float:
    return result.sampled_tokens / result.seconds if result.seconds else 0.0


def _first_line(text: str) -> str:
    """One line for a column of facts; what is left out is marked."""
    line, *more = text.strip().split("\n")
    return _shown(line) + (" …" if more else "")


def _shown(text: str) -> str:
    """Text of a model, harmless to a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
