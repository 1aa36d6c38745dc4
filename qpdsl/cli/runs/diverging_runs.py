"""`qpdsl diff --first-divergence`: the rows of two runs, run again on both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from qpdsl.cli.console import say
from qpdsl.cli.runs.repeated_run import Elsewhere, RepeatedRun, repeated
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.runs.compare.comparison import Comparison
from qpdsl.runs.compare.first_divergences import FirstDivergences, first_divergences
from qpdsl.runs.compare.retraced import RetracedRow, Retracing
from qpdsl.runs.compare.side import Side


def divergences_of(comparison: Comparison) -> FirstDivergences:
    """Where the problems of two runs parted. Raises what a run may raise, and UsageError for several seeds."""
    with interruptible(), contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_again(side)) for side in (comparison.first, comparison.second)]
        sides = [Retracing(run.session, run.job, run_until_interrupted, run.options.concurrency) for run in runs]
        rows: list[Mapping[int, RetracedRow]] = []
        for number, (run, side) in enumerate(zip(runs, sides, strict=True)):
            for line in run.elsewhere:
                say(f"note: run `{run.saved.info.id}` was made by another build or device than is here: {line}")
            wanted = [pair[number].rows[0] for pair in comparison.matching.pairs]
            here = [(row.number, run.rows[row.number]) for row in wanted if run.is_here(row)]
            rows.append(side.rows(here))
        found = first_divergences(comparison, (sides[0], sides[1]), (rows[0], rows[1]))
    if found.unrepeated:
        problems = f"{len(found.unrepeated):,} problem{'s' * (len(found.unrepeated) > 1)}"
        say(f"warning: {problems} came out otherwise than saved, and left out here; `qpdsl verify` says where")
    return found


def _again(side: Side) -> contextlib.AbstractContextManager[RepeatedRun]:
    if len(side.runs) > 1:
        raise UsageError(f"`--first-divergence` takes one run on each side, and `{side.name}` are {len(side.runs)}")
    return repeated(side.runs[0], Elsewhere(), whole=True)
