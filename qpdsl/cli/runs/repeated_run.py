"""A saved run made ready to run again, from its record: its program, values, settings and rows, on this machine.

What its results depend on must be what it was: the text of the program, the values, the seed, the models' digests.
The build and the device may be others.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.cli.runs.recorded_options import name_of, recorded_options
from qpdsl.cli.runs.run_options import RunOptions, loaded_session, plan_use, recording_samples
from qpdsl.cli.runs.sweep_options import SweepOptions
from qpdsl.cli.shared_options import asking, graded_input, grader_for
from qpdsl.errors import DataError, UsageError
from qpdsl.grammar.words import KV_TYPES
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.rules import RULES
from qpdsl.planner.values.value import plain
from qpdsl.runs.compare.side import SavedRun
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job, refuse_tools
from qpdsl.runs.store.fingerprint import Fingerprint, changes, model_digests, run_fingerprint
from qpdsl.runs.store.recording import is_of
from qpdsl.runs.store.run_record import RowRecord, RunRecord
from qpdsl.session.prepare import Prepared, ask_servers, bind_program, loses, prepare, surroundings_of
from qpdsl.session.programs import find_source
from qpdsl.session.settings import Settings

if TYPE_CHECKING:
    from qpdsl.session.session import Session

# Parts of a fingerprint that may be others where a run is repeated: what computes, and what is recorded besides.
BUILD = ("version", "device", "dtype", "deterministic")
# What is recorded besides, which no result depends on.
_RECORDED = "options"
# Exact rules that change what is drawn: samples are given up, or drawn before it is known whether they are needed.
EARLY = tuple(rule.name for rule in RULES if rule.effect is not None and rule.equivalence == "exact")


@dataclass(frozen=True)
class Elsewhere:
    """What is otherwise here than it was where the run was made: places of data and models, and the device."""

    input: str | None = None
    models: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class RepeatedRun:
    """A saved run, prepared again. `rows` are its rows in the input that there is now, by number."""

    saved: SavedRun
    options: Settings
    prepared: Prepared
    job: Job
    rows: Mapping[int, InputRow]

    @cached_property
    def session(self) -> Session:
        """A session with the models loaded. Raises ModelError."""
        plans, surroundings = list(self.prepared.plans), self.prepared.bound.surroundings
        settings = self.options.for_plan(self.job.plan)
        return loaded_session(settings, plans, surroundings, quiet=True)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What its results depend on here."""
        models = model_digests(self.job.models, lambda: self.session)
        python = self.prepared.bound.surroundings.python
        return run_fingerprint(self.job, self.prepared.values, self.options, models=models, python=python)

    @property
    def elsewhere(self) -> list[str]:
        """In words, what computes otherwise than it did."""
        then, now = self.saved.record.fingerprint, self.fingerprint
        found = changes(_parts(then, build=True), _parts(now, build=True))
        if (old := then["version"].split(", ")) != (new := now["version"].split(", ")):
            # Of libraries those that differ.
            sides = (", ".join(part for part in one if part not in other) for one, other in ((old, new), (new, old)))
            found[0] = "qpdsl or its libraries (was {}, is {})".format(*sides)
        return found

    def check(self, *, plan: bool = True) -> None:
        """Raises UsageError where something else would be run than was; the `plan` need not be the same."""
        then, now = (_parts(own, build=False) for own in (self.saved.record.fingerprint, self.fingerprint))
        found = changes(then, now if plan else {**now, "plan": then["plan"]})
        if found:
            raise UsageError(
                f"run `{self.saved.info.id}` cannot be repeated here; another than it was: {', '.join(found)}",
                "`--model NAME=PATH` says where a model is on this machine, `--input FILE` where the data is",
            )

    def is_here(self, row: RowRecord) -> bool:
        """Whether a saved row is in the input, with the arguments that it had."""
        return row.number in self.rows and is_of(row, self.rows[row.number])


@contextlib.contextmanager
def repeated(saved: SavedRun, elsewhere: Elsewhere, *, whole: bool = False) -> Iterator[RepeatedRun]:
    """A saved run, prepared again, while the block runs. Raises UsageError, DataError, QpError and ModelError.

    With `whole` its plan draws every sample to its end, and none that the program does not ask for.
    """
    with contextlib.ExitStack() as stack:
        options = _options(saved, elsewhere)
        if whole and options.plan_kind == "optimized":
            options = replace(options, disabled=(*options.disabled, *EARLY))
        options = _with_text(options, saved.record, stack)
        prepared = _prepared(options, saved.record)
        refuse_tools(prepared.plan)
        data = graded_input(options, prepared.plan, prepared.values)
        grader = grader_for(options, data, prepared.bound.surroundings)
        rows = isinstance(options, RunOptions) and options.rows
        job = Job.of(prepared, saved.record.seed, with_rows=rows, grader=grader)
        if isinstance(options, RunOptions):
            job = recording_samples(job, options, None)
        made = RepeatedRun(saved, options, prepared, job, dict(enumerate(data.rows)))
        if saved.rows and not any(map(made.is_here, saved.rows)):
            raise DataError(
                f"no row of run `{saved.info.id}` is in `{data.name}`",
                "`--input FILE` names the data that it was run on",
            )
        made.check(plan=not whole)
        yield made


def _parts(fingerprint: Fingerprint, *, build: bool) -> Fingerprint:
    parts = {name: value for name, value in fingerprint.items() if name != _RECORDED}
    return {name: value for name, value in parts.items() if (name in BUILD) == build}


def _options(saved: SavedRun, elsewhere: Elsewhere) -> RunOptions | SweepOptions:
    """The options that a run was started with, as far as this machine has no others."""
    options = recorded_options(saved.record, saved.path)
    source = elsewhere.input or options.input
    if source == "-":
        raise UsageError("the rows came from standard input", "`--input FILE` names a file that has them")
    shown = {"analyze": False} if isinstance(options, RunOptions) else {"plot": None}
    new = {name_of(setting) for setting in elsewhere.models}
    models = (*(setting for setting in options.models if name_of(setting) not in new), *elsewhere.models)
    device, dtype = elsewhere.device or options.device, elsewhere.dtype or options.dtype
    quiet = replace(options, output=None, overwrite=False, cluster=None, trace=None, tui=False, **shown)
    return replace(quiet, input=source, device=device, dtype=dtype, models=models)


def _with_text(
    options: RunOptions | SweepOptions, record: RunRecord, stack: contextlib.ExitStack
) -> RunOptions | SweepOptions:
    """The options with a file of the program as it was, where the file that they name is gone or was changed."""
    if isinstance(options, SweepOptions):
        return options
    if options.target is None or _text(options.target) == record.source:
        return options
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="qpdsl-"))
    place = Path(folder) / (Path(options.target).name if options.target != "-" else "program.qp")
    place.write_text(record.source, encoding="utf-8")
    return replace(options, target=str(place))


def _text(target: str) -> str | None:
    try:
        return None if target == "-" else find_source(target).text
    except UsageError:
        return None


def _prepared(options: RunOptions | SweepOptions, record: RunRecord) -> Prepared:
    """The program of a run, planned as it was; a budget decides by what it decided by."""

    def policy(*_: Any) -> BudgetPolicy | None:
        return None if record.policy is None else BudgetPolicy.from_json(record.policy)

    if isinstance(options, SweepOptions):
        return _cell(options, record)
    bound = bind_program(options)
    servers = ask_servers([bound], options, asking())
    use = plan_use(options)
    if loses(bound.program) and options.kv_type is None:
        kv_type: Any = record.fingerprint.get("kv type")
        options, use = replace(options, kv_type=kv_type if kv_type in KV_TYPES else None), replace(use, alone=False)
    return prepare(bound, options, use, policy, servers)


def _cell(options: SweepOptions, record: RunRecord) -> Prepared:
    """The cell of a sweep that a run is of. Raises UsageError where the sweep has it no more."""
    from qpdsl.cli.runs.sweep_run import planned_cells

    wanted = {name: record.fingerprint.get(name) for name in ("program", "arguments", "policy")}
    surroundings = surroundings_of(options)
    for cell in planned_cells(options, surroundings):
        if cell.program.name == record.program and _plain_values(cell.prepared) == dict(record.parameters):
            job = Job.of(cell.prepared, record.seed)
            found = run_fingerprint(job, cell.values, options)
            if all(found.get(name) == value for name, value in wanted.items()):
                return cell.prepared
    raise UsageError(f"the sweep has no cell any more with the program and the values of `{record.program}`")


def _plain_values(prepared: Prepared) -> dict[str, Any]:
    return {name: plain(value) for name, value in prepared.values.items()}
