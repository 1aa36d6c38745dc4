"""What a replica is told before its first row: what to run, with which models and settings."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from qpdsl.dataset.job import Job
from qpdsl.errors import UsageError
from qpdsl.run_store.fingerprint import build


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
    """Everything can be pickled. `jobs` are pickled by themselves, as they may need what the Python files define.

    `settings` are keywords of `Session`; `python` the files whose functions programs call, by their whole path, and
    `python_digest` what they held. `folder` is the current folder, to which names of models may be relative.
    `concurrency` is how many rows are in flight in each replica, None for what the plans say. `threads` are those that
    a replica may use at the most. `build` is that of the process which gives out the rows.
    """

    jobs: bytes
    settings: Mapping[str, Any]
    python: tuple[str, ...] = ()
    python_digest: str = ""
    folder: str = "."
    concurrency: int | None = None
    threads: int | None = None
    build: str = ""

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        settings: Mapping[str, Any],
        *,
        python: Sequence[str] = (),
        python_digest: str = "",
        concurrency: int | None = None,
    ) -> Self:
        """The setup for these jobs. Raises UsageError for a job that cannot be sent to another process."""
        try:
            packed = pickle.dumps(tuple(jobs))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            graders = ", ".join(dict.fromkeys(f"`{job.grader.name}`" for job in jobs))
            raise UsageError(
                f"`--cluster`: what is run for a row cannot be sent to replicas (grader {graders}): {error}",
                "leave out `--cluster`",
            ) from error
        return cls(
            jobs=packed,
            settings={name: value for name, value in settings.items() if not callable(value)},
            python=tuple(str(Path(file).absolute()) for file in python),
            python_digest=python_digest,
            folder=str(Path.cwd()),
            concurrency=concurrency,
            build=build(),
        )
