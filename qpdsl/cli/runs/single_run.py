"""A single run: its answer for people, or as one JSON object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qpdsl import zoo
from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.analysis_run import Measurement, row_of_values
from qpdsl.cli.runs.run_events import emit_row, run_events
from qpdsl.cli.runs.run_files import RunFiles
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.cli.watched import WatchedProcess
from qpdsl.executor.requests.errors import BudgetReached, ServerGone
from qpdsl.model_location import locate_adapter
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS, UNFINISHED, thought_json
from qpdsl.planner.values.value import Value, dumps, plain, shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import same_answer
from qpdsl.runs.job import Job, run_one
from qpdsl.runs.row_outcome import Outcome, outcome, plain_candidates, plain_rows
from qpdsl.runs.summary import LEFT_EARLY, TOO_LONG, aligned
from qpdsl.runs.usage import (
    FilterFigures,
    call_facts,
    calls_record,
    count_waits,
    found_json,
    shadow_facts,
    shadow_json,
    tokens_words,
    total_calls,
    wait_facts,
    waits_json,
)
from qpdsl.session.prepare import Prepared
from qpdsl.stage_options import check_options

if TYPE_CHECKING:
    from qpdsl.executor.requests.latencies import Waits
    from qpdsl.executor.requests.request import Calls
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.session.session import Session

# Where another way to find `final_answer` would have found one.
_FOUND_NOTHING, _CUT_OFF = "`final_answer` found nothing", "cut off by `max_tokens`"
_LAST_NUMBER = re.compile(r"`final_answer` found nothing.*`last_number` would find", re.DOTALL)


def answer(process: WatchedProcess, options: RunOptions, prepared: Prepared, files: RunFiles) -> Exit:
    """Runs the program once, with its values for its parameters, and prints what it gave."""
    job = Job.of(prepared, options.seed or 0, with_rows=options.rows, with_candidates=options.rows)
    row = row_of_values(prepared)
    check_options(job.plan, row.arguments)
    if options.text is not None and not options.text.strip():
        say("warning: the text is empty")
    _say_if_foreign(job, row)
    with run_events(process, options, job, [row]), process.progress.of_answer():
        counted = count_waits(process.stream)
        session = open_session(options, job, prepared.bound.surroundings, process.stream)
        process.record(files.trace)
        how = {"alone": job.greedy is None, "wanted": options.analyze}
        measured = Measurement(options, session, job.plan, 1, **how)
        try:
            result, greedy, row_outcome = run_until_interrupted(_run(session, job, row))
        except (BudgetReached, ServerGone):
            for name, text in call_facts(total_calls(session.calls)):
                say(f"{name}: {text}")
            raise
        emit_row(process.stream, row, row_outcome)
    measured.tell()
    measured.remember()
    calls, waits = total_calls(session.calls), counted()
    if options.json:
        put(dumps(_as_json(options, job, result, greedy, waits) | calls_record(calls, result.counts)))
    elif result.error is None or options.rows:
        put("\n".join(_lines(options, result, greedy, waits, calls)))
    if result.error is not None:
        say(f"error: {result.error}")
        if result.unscored and not options.json:
            say(f"note: {result.unscored:,} candidates have no score {TOO_LONG}")
        if (result.rows or _FOUND_NOTHING in result.error) and not options.rows:
            other = ""
            if _LAST_NUMBER.search(result.error):
                other = "`--answer last_number` finds that; "
            elif _FOUND_NOTHING in result.error:
                longer = any(one.name == "max_tokens" for one in job.plan.params) and _CUT_OFF in result.error
                other = "`--set max_tokens=…` lets a text go on; " if longer else ""
                other += "`--answer text` takes the whole text as the answer; "
            say(f"help: {other}`--rows` shows what was generated")
        return Exit.ROW_FAILED
    return Exit.OK


def _say_if_foreign(job: Job, row: InputRow) -> None:
    """Says what the built-in models are for, where a program asks one of them something else."""
    models = job.plan.models.values()
    # What a model knows with an adapter on it is not known here.
    builtin = [model for model in models if model.startswith("zoo/") and locate_adapter(model) is None]
    texts = [
        value for name, value in row.arguments.items() if isinstance(value, str) and name in (row.own or row.arguments)
    ]
    if builtin and texts and all(map(zoo.is_foreign, texts)):
        say(f"note: {builtin[0]} knows counting problems and short notes only; `--model NAME=…` takes another model")


async def _run(session: Session, job: Job, row: InputRow) -> tuple[InstanceResult, InstanceResult | None, Outcome]:
    async with session.running():
        result, greedy = await run_one(session, job, row)
    for ended in (result, greedy):
        if ended is not None and ended.fault is not None:
            raise ended.fault
    return result, greedy, await outcome(row, result, greedy, job.grader, with_rows=False)


def _lines(
    options: RunOptions,
    result: InstanceResult,
    greedy: InstanceResult | None,
    waits: Mapping[str, Waits],
    calls: Calls | None,
) -> list[str]:
    answer = shown(result.value)
    facts = [("answer", _first_line(answer))]
    if result.score is not None:
        facts.append(("score", f"{plain(result.score)}"))
    thought = result.counts.get(THOUGHT_TOKENS, 0)
    facts.append(("tokens", tokens_words(result.prompt_tokens, result.sampled_tokens, thought)))
    if result.counts.get(UNFINISHED):
        facts.append(("unfinished", LEFT_EARLY))
    facts += _found(result)
    if result.unscored:
        facts.append(("unscored", f"{result.unscored:,} {TOO_LONG}"))
    if (filtered := FilterFigures.of(result.counts)) is not None:
        facts += filtered.facts()
    facts += shadow_facts(result.counts)
    facts += call_facts(calls, result.counts)
    if greedy is not None:
        greedy_answer = _first_line(shown(greedy.value)) if greedy.error is None else f"failed: {greedy.error}"
        facts.append(("greedy", f"{greedy_answer} ({greedy.sampled_tokens:,} tokens out)"))
    if options.timing:
        facts.append(("seconds", f"{result.seconds:.2f} ({_rate(result):,.0f} tokens/s)"))
        facts += wait_facts(waits)
    lines = aligned(facts)
    text = str(result.rows[0].columns.get("text") or "") if result.rows else ""
    if "\n" in answer.strip():
        lines += ["", answer.strip()]
    same = text.strip() == answer.strip() or (isinstance(result.value, dict) and same_answer(text, result.value))
    if text.strip() and not same:
        lines += ["", text.strip()]
    if options.rows:
        for number, columns in enumerate(plain_rows(result.rows), 1):
            lines += ["", f"row {number}", *_row(columns)]
        for number, candidate in enumerate(plain_candidates(result.candidates or ()), 1):
            known = {name: value for name, value in candidate.items() if value is not None and name != "ballot"}
            lines += ["", f"candidate {number}", *_row(known)]
    return lines


def _found(result: InstanceResult) -> list[tuple[str, str]]:
    """In how many of several texts an answer was found; nothing where that is all of them."""
    found = found_json(result.counts).get("found", {})
    texts, none = sum(found.values()), found.get("none", 0)
    if not none:
        return []
    more = ", `--answer last_number` takes the last number of each" if 2 * none > texts else ""
    return [("found", f"an answer in {texts - none:,} of {texts:,} texts; `--rows` shows them{more}")]


def _row(columns: Mapping[str, Value]) -> list[str]:
    """Every column of a row, indented, the further lines of a text under its first."""
    width = max(map(len, columns)) + 4
    texts = {name: shown(value).strip().replace("\n", "\n" + " " * width) for name, value in columns.items()}
    return aligned((f"  {name}", text) for name, text in texts.items())


def _as_json(
    options: RunOptions,
    job: Job,
    result: InstanceResult,
    greedy: InstanceResult | None,
    waits: Mapping[str, Waits],
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "program": job.plan.name,
        "answer": plain(result.value),
        "score": None if result.score is None else plain(result.score),
        "tokens_in": result.prompt_tokens,
        "tokens_out": result.sampled_tokens,
        **thought_json(result.counts),
        "near_ties": result.near_ties,
        "text": result.rows[0].columns.get("text") if result.rows else None,
    }
    if result.counts.get(UNFINISHED):
        record["unfinished"] = True
    if result.unscored:
        record["unscored"] = result.unscored
    if (filtered := FilterFigures.of(result.counts)) is not None:
        record["filter"] = filtered.to_json(timing=options.timing)
    record |= shadow_json(result.counts)
    if greedy is not None:
        record["greedy"] = {"answer": plain(greedy.value), "tokens_out": greedy.sampled_tokens}
    if result.error is not None:
        record["error"] = result.error
    if options.timing:
        record |= {"seconds": round(result.seconds, 3), "tokens_per_second": round(_rate(result), 1)}
        record["waits"] = waits_json(waits)
    if options.rows:
        record["rows"] = plain_rows(result.rows)
        if result.candidates is not None:
            record["candidates"] = plain_candidates(result.candidates)
    return record


def _rate(result: InstanceResult) -> float:
    return result.sampled_tokens / result.seconds if result.seconds else 0.0


def _first_line(text: str) -> str:
    """One line for a column of facts; `…` marks that lines were left out."""
    line, *more = text.strip().split("\n")
    return line + (" …" if more else "")
