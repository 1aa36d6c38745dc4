"""Rows that replicas run for a command line: what they are told, and what is said and kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from qpdsl.cli.console import say
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.messages import Task
from qpdsl.cluster.replica.replica_setup import ReplicaSetup
from qpdsl.dataset.job import Job
from qpdsl.dataset.row_runner import FinishedRow, KeepRows
from qpdsl.dataset.summary import aligned
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.request import Calls
from qpdsl.inputs.input_row import InputRow
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.run_store.run_file import RunFile

# Of more replicas than that, those alone are told of that were lost, or that differ.
_MOST_TOLD = 16


class ReplicaOptions(Protocol):
    """What is read here of a command's options."""

    @property
    def cluster_address(self) -> ClusterAddress | None: ...
    @property
    def allow_mixed(self) -> bool: ...
    @property
    def settings_of_session(self) -> Mapping[str, Any]: ...
    @property
    def python(self) -> Sequence[str]: ...
    @property
    def concurrency(self) -> int | None: ...


class ReplicaRows:
    """A `RowRunner` over the replicas that the options name. `keeps` is the run whose events tell of them.

    `settings` are keywords of `Session`, besides those that the options have.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        jobs: Sequence[Job],
        surroundings: Surroundings,
        events: EventStream,
        keeps: RunFile | None = None,
        **settings: Any,
    ) -> None:
        address = options.cluster_address
        assert address is not None
        setup = ReplicaSetup.of(
            jobs,
            {**options.settings_of_session, **settings},
            python=options.python,
            python_digest=surroundings.python,
            concurrency=options.concurrency,
        )
        self._keeps = keeps
        self._cluster = ClusterRun(address, setup, jobs, events, tell=self._note, allow_mixed=options.allow_mixed)

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: KeepRows) -> None:
        """See `RowRunner`."""
        await self._cluster.run(rows, self._marked(done))

    async def run_tasks(self, tasks: Iterable[Task], done: KeepRows) -> None:
        """See `ClusterRun.run_tasks`."""
        await self._cluster.run_tasks(tasks, self._marked(done))

    def _marked(self, done: KeepRows) -> KeepRows:
        """Has rows marked with their replicas where these could differ, and only then."""

        def marked(rows: Sequence[FinishedRow]) -> None:
            done(rows if self._cluster.mixed else [replace(row, replica=None) for row in rows])

        return marked

    @property
    def calls(self) -> dict[str, Calls]:
        """What replicas took of servers, by model, of those that ended in good order."""
        return self._cluster.calls

    def stop(self) -> None:
        """Keeps what the replicas did, however the run ended."""
        if self._keeps is not None:
            self._keeps.event("replicas", replicas=[figures.to_json() for figures in self._cluster.figures])

    def tell(self) -> None:
        """Says what each replica did."""
        figures = self._cluster.figures
        if len(figures) > _MOST_TOLD:
            say(f"replicas  {len(figures)}, {sum(own.lost is not None for own in figures)} of them lost")
            figures = [own for own in figures if own.lost is not None or own.differs][:_MOST_TOLD]
        say("\n".join(aligned((own.name, own.words()) for own in figures)))

    def _note(self, note: str) -> None:
        say(note)
        if self._keeps is not None:
            self._keeps.event("note", text=note)
