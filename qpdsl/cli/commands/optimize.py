"""`qpdsl optimize`: better texts for a program."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.project_command import ModelCommand
from qpdsl.cli.shared_options import program_argument, setting_options
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.session.setting import STDOUT, FilePath, Whole, setting
from qpdsl.session.settings import OUTPUT, Settings

if TYPE_CHECKING:
    from qpdsl.cli.file_guard import OutputFile
    from qpdsl.runs.data.input_row import InputRow
    from qpdsl.runs.graders.grader import Grader
    from qpdsl.runs.optimizing import OptimizedTexts
    from qpdsl.runs.row_outcome import Outcome
    from qpdsl.session.prepare import Prepared
    from qpdsl.session.session import Session

OPTIMIZING = "Optimizing"
_own = partial(setting, on="optimize", heading=OPTIMIZING)
# The model is replaced by the one of `--reflect`.
_REFLECTION = """\
model llm = "zoo/counting"

program reflect(asked: text) -> text {
  chat user=asked
  generate llm max_tokens=4096
  return text
}
"""


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(Settings):
    """What `qpdsl optimize` takes besides the settings of all commands."""

    reflect: str | None = _own(
        usual=True, metavar="MODEL", help="The model that reads what went wrong and writes new texts."
    )
    rows: int = _own(
        200, usual=True, kind=Whole(1), option="--budget", metavar="N", help="Run the program on about N rows in all."
    )
    output: str | None = setting(
        usual=True,
        on="optimize",
        heading=OUTPUT,
        kind=FilePath(STDOUT),
        metavar="FILE",
        shown="stdout",
        help="Write the program with its new texts to FILE.",
    )
    overwrite: bool = setting(False, on="optimize", heading=OUTPUT, help="Replace the file of --output.")


@click.command(cls=ModelCommand)
@program_argument
@setting_options(OptimizeOptions, "optimize")
def command(**values: Any) -> Exit:
    """Improve the texts of a program by GEPA (extra `optimize`), and say by how much on rows that were held out.

    Texts are the defaults of text parameters, and strings of `chat`, `prompt` and `say`; what stands in braces is
    inserted as before. A quarter of the rows is reflected on, a quarter chooses, and half is held out. Where it
    was interrupted, the same command goes on.

    \b
    qpdsl optimize my.qp --input problems.jsonl --reflect Qwen/Qwen3-4B --budget 400 --output better.qp
    """
    options = OptimizeOptions(**values)
    options.check()
    with interruptible():
        return _optimize(options)


def _optimize(options: OptimizeOptions) -> Exit:
    from qpdsl.cli.shared_options import graded_input, grader_for
    from qpdsl.runs.job import refuse_effects
    from qpdsl.runs.optimizing import ProgramTexts, optimized, required_gepa

    if options.reflect is None or options.input is None:
        raise UsageError("`qpdsl optimize` needs `--input` and `--reflect`")
    first = _prepared(options)
    surroundings = first.bound.surroundings
    refuse_effects(first.plan, surroundings.functions)
    texts = ProgramTexts.of(first.program)
    target = _output(options, first)
    required_gepa()
    data = graded_input(options, first.plan, first.values)
    for note in data.notes:
        say(note)
    grader = grader_for(options, data, surroundings)
    state = _state_folder(options, first, data.rows)
    with tempfile.TemporaryDirectory(prefix="qpdsl-") as folder:
        runner = _Runner(options, first, grader, Path(folder))
        found = optimized(
            texts,
            data.rows,
            runner.outcomes,
            runner.reflector(options.reflect),
            options.rows,
            seed=options.seed or 0,
            folder=state,
            tell=say,
        )
    if target is None:
        put(found.source.rstrip("\n"))
    else:
        target.write(found.source.splitlines())
    shutil.rmtree(state, ignore_errors=True)
    say("\n".join(_report(found)))
    return Exit.OK


def _output(options: OptimizeOptions, first: Prepared) -> OutputFile | None:
    """Where the program goes, once all files are known. Raises UsageError."""
    from qpdsl.cli.file_guard import Contents
    from qpdsl.cli.runs.run_files import guard_of, name_completions

    targets = [] if options.target is None else [options.target]
    guard = guard_of(
        options, targets, {**first.models, "reflect": options.reflect or ""}, first.plans, first.bound.surroundings
    )
    name_completions(guard, options)
    if options.output is None:
        return None
    contents = Contents("a program", _begins_program)
    return guard.writes(Path(options.output).absolute(), "`--output`", contents, overwrite=options.overwrite)


def _begins_program(file: BinaryIO) -> bool:
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.grammar.source import Source

    try:
        return bool(parse_file(Source("", file.read().decode())).programs)
    except (QpError, UnicodeDecodeError):
        return False


def _state_folder(options: OptimizeOptions, first: Prepared, rows: Sequence[InputRow]) -> Path:
    """Where the state is kept of this program, these rows and models: the user's own folder, as gepa unpickles it."""
    from qpdsl.runs.optimizing import is_state
    from qpdsl.runs.store.fingerprint import digest
    from qpdsl.session import user_cache

    asked = [[row.id, dict(row.arguments), row.reference] for row in rows]
    about = [first.program.source.text, repr(asked), dict(first.models), options.reflect, options.seed or 0]
    state = user_cache.folder() / "optimize" / digest(about)
    if is_state(state):
        say("it goes on from where it was interrupted")
    else:
        shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    return state


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
    servers = ask_servers([bound], options, asking())
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

        settings = replace(
            self._options,
            models=(f"llm={model}",),
            adapters=(),
            assigned=(),
            drafts=(),
            python=(),
            tools=(),
            program=None,
            answer=None,
            input=None,
        )
        prepared = _prepared(self._named(_REFLECTION, settings))
        surroundings = prepared.bound.surroundings
        session = loaded_session(settings.for_plan(prepared.plan), [prepared.plan], surroundings, quiet=True)
        asked = 0

        def reflect(prompt: str) -> str:
            nonlocal asked
            asked += 1
            row = InputRow(f"reflection {asked}", {"asked": prompt})
            (outcome,) = self._run(session, _REFLECTION, settings, EqualAnswer(), [row], asked)
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
