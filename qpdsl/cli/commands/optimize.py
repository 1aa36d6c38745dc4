"""`qpdsl optimize`: better texts for a program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import HeadedCommand, program_argument, setting_options
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.session.setting import FilePath, Whole, setting
from qpdsl.session.settings import OUTPUT, Settings

if TYPE_CHECKING:
    from qpdsl.runs.data.input_row import InputRow
    from qpdsl.runs.graders.grader import Grader
    from qpdsl.runs.optimizing import OptimizedTexts
    from qpdsl.runs.row_outcome import Outcome
    from qpdsl.session.prepare import Prepared
    from qpdsl.session.session import Session

OPTIMIZING = "Optimizing"
_own = partial(setting, on="optimize", heading=OPTIMIZING)
_REFLECTION = """\
model llm = "{model}"

program reflect(asked: text) -> text {{
  chat user=asked
  generate llm max_tokens=4096
  return text
}}
"""


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(Settings):
    """What `qpdsl optimize` takes besides the settings of all commands."""

    reflect: str | None = _own(metavar="MODEL", help="The model that reads what went wrong and writes new texts.")
    rows: int = _own(200, kind=Whole(1), option="--budget", metavar="N", help="Run the program on about N rows in all.")
    work: str | None = _own(
        kind=FilePath("it is a folder"),
        metavar="FOLDER",
        help="Keep the state here, and go on from it.",
    )
    output: str | None = setting(
        on="optimize",
        heading=OUTPUT,
        kind=FilePath("without `--output` the program goes to stdout"),
        metavar="FILE",
        shown="stdout",
        help="Write the program with its new texts to FILE.",
    )


@click.command(cls=HeadedCommand)
@program_argument
@setting_options(OptimizeOptions, "optimize")
def command(**values: Any) -> Exit:
    """Improve the texts of a program by GEPA (extra `optimize`), and say by how much on rows that were held out.

    Texts are the defaults of text parameters, and strings of `chat`, `prompt` and `say`; what stands in braces is
    inserted as before. A quarter of the rows is reflected on, a quarter chooses, and half is held out.

    \b
    qpdsl optimize my.qp --input problems.jsonl --reflect Qwen/Qwen3-4B --budget 400 --output better.qp
    """
    options = OptimizeOptions(**values)
    options.check()
    with interruptible():
        return _optimize(options)


def _optimize(options: OptimizeOptions) -> Exit:
    from qpdsl.cli.file_guard import Contents, FileGuard
    from qpdsl.runs.optimizing import ProgramTexts, optimized

    if options.reflect is None or options.input is None:
        raise UsageError("`qpdsl optimize` needs `--input` and `--reflect`")
    from qpdsl.cli.shared_options import graded_input, grader_for

    first = _prepared(options)
    texts = ProgramTexts.of(first.program)
    data = graded_input(options, first.plan, first.values)
    for note in data.notes:
        say(note)
    grader = grader_for(options, data, first.bound.surroundings)
    target = None
    if options.output is not None:
        guard = FileGuard()
        guard.reads(Path(options.input), "the input")
        target = guard.writes(
            Path(options.output), "`--output`", Contents("a program", lambda file: False), overwrite=False
        )
    with tempfile.TemporaryDirectory(prefix="qpdsl-") as folder:
        runner = _Runner(options, first, grader, Path(folder))
        found = optimized(
            texts,
            data.rows,
            runner.outcomes,
            runner.reflector(options.reflect),
            options.rows,
            seed=options.seed or 0,
            folder=None if options.work is None else Path(options.work),
            tell=lambda line: None,
        )
    if target is None:
        put(found.source.rstrip("\n"))
    else:
        target.write(found.source.splitlines())
    say("\n".join(_report(found)))
    return Exit.OK


def _report(found: OptimizedTexts) -> list[str]:
    changed = [name for name, text in found.after.items() if text != found.before[name]]
    lines = [f"{name}: {found.after[name]}" for name in changed] or ["no other text was better"]
    gain, (before, after) = found.gain, found.held_out
    low, high = 100 * gain.interval.low, 100 * gain.interval.high
    lines.append(
        f"held out     {before:.1%} → {after:.1%}: {100 * gain.difference:+.1f} points "
        f"({low:+.1f} to {high:+.1f}), p = {gain.p_value:.2g}, {gain.pairs} rows"
    )
    return [*lines, f"rows run     {found.calls:,} to find them"]


def _prepared(options: Settings) -> Prepared:
    from qpdsl.cli.shared_options import asking
    from qpdsl.session.prepare import PlanUse, ask_servers, bind_program, prepare

    bound = bind_program(options)
    servers = ask_servers([bound], options, asking(quiet=True))
    return prepare(bound, options, PlanUse(), lambda program, values: None, servers)


class _Runner:
    """Runs programs by their text, with the models of the first one in one session."""

    def __init__(self, options: Settings, first: Prepared, grader: Grader, folder: Path) -> None:
        from qpdsl.cli.runs.run_options import loaded_session
        from qpdsl.runs.graders.judge_program import bind_grader

        self._options, self._grader, self._folder = options, grader, folder
        surroundings = first.bound.surroundings
        self._session = loaded_session(options.for_plan(first.plan), [first.plan], surroundings, quiet=True)
        bind_grader(grader, self._session)

    def outcomes(self, source: str, rows: Sequence[InputRow]) -> list[Outcome]:
        """Raises QpError and UserError for a text that is no program of these models."""
        return self._run(self._session, source, self._options, self._grader, rows, self._options.seed or 0)

    def reflector(self, model: str) -> Callable[[str], str]:
        """What a model answers; each time by another seed."""
        from qpdsl.cli.runs.run_options import loaded_session
        from qpdsl.runs.data.input_row import InputRow
        from qpdsl.runs.graders.grader import EqualAnswer

        source = _REFLECTION.format(model=model)
        settings = replace(
            self._options, models=(), adapters=(), assigned=(), drafts=(), program=None, answer=None, input=None
        )
        prepared = _prepared(self._named(source, settings))
        surroundings = prepared.bound.surroundings
        session = loaded_session(settings.for_plan(prepared.plan), [prepared.plan], surroundings, quiet=True)
        asked = 0

        def reflect(prompt: str) -> str:
            nonlocal asked
            asked += 1
            row = InputRow(f"reflection {asked}", {"asked": prompt})
            (outcome,) = self._run(session, source, settings, EqualAnswer(), [row], asked)
            return str(outcome.answer or "")

        return reflect

    def _run(
        self,
        session: Session,
        source: str,
        settings: Settings,
        grader: Grader,
        rows: Sequence[InputRow],
        seed: int,
    ) -> list[Outcome]:
        from qpdsl.runs.job import Job
        from qpdsl.runs.runner import outcomes_of

        prepared = _prepared(self._named(source, settings))
        session.load(prepared.plan)
        return run_until_interrupted(
            outcomes_of(session, Job.of(prepared, seed, grader=grader), rows, self._options.concurrency)
        )

    def _named(self, source: str, settings: Settings) -> Settings:
        place = self._folder / "program.qp"
        place.write_text(source, encoding="utf-8")
        return replace(settings, target=str(place))
