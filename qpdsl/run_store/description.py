"""The record of a run that is about to begin."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from qpdsl.dataset.job import Job
from qpdsl.inputs.input_row import InputData
from qpdsl.planner.explain.plan import explain
from qpdsl.planner.values.json_values import plain
from qpdsl.planner.values.value import Value
from qpdsl.run_store.fingerprint import Fingerprint
from qpdsl.run_store.run_record import RunRecord, grader_name


def run_record(
    job: Job,
    data: InputData,
    values: Mapping[str, Value],
    fingerprint: Fingerprint,
    *,
    sweep: str | None = None,
    command: Sequence[str] = (),
    output: Path | None = None,
    replaces: bool = False,
) -> RunRecord:
    """The record of a run of `job` over `data`, which begins now.

    `values` hold for all rows; `fingerprint` is `run_fingerprint` of the same. The other arguments are fields of
    `RunRecord`.
    """
    return RunRecord(
        program=job.plan.name,
        source=job.source,
        parameters={name: plain(value) for name, value in values.items()},
        models=dict(job.models),
        seed=job.seed,
        plan=explain(job.plan),
        planned=job.planned,
        fingerprint=dict(fingerprint),
        input=data.name,
        input_digest=data.digest,
        rows=len(data.rows),
        grader=grader_name(job.grader),
        started=time.time(),
        machine=machine(),
        policy=None if job.plan.policy is None else job.plan.policy.to_json(),
        sweep=sweep,
        command=tuple(command),
        output=None if output is None else str(output),
        replaces=replaces,
    )


@cache
def machine() -> str:
    """This machine in a few words, for people: its name, its processor, its cores."""
    cores = os.cpu_count() or 1
    return f"{platform.node()}, {_processor()}, {cores} core{'s' * (cores > 1)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
