"""`--cluster`: its options, and what does not go with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qpdsl.errors import UsageError

if TYPE_CHECKING:
    from qpdsl.cluster.cluster_address import ClusterAddress

Command = Callable[..., Any]

# What needs the session itself, or counts over all rows in one process.
_ALONE = {
    "analyze": "it measures this process",
    "router": "each replica would learn by itself",
    "record_routes": "each replica would learn by itself",
    "max_tokens_total": "each replica would spend as much",
    "max_cost": "each replica would spend as much",
}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where rows run; `cluster_options` says what each means."""

    cluster: str | None = None
    allow_mixed: bool = False

    @property
    def cluster_address(self) -> ClusterAddress | None:
        """Where replicas run, None for this process alone. Raises UsageError."""
        if self.cluster is None:
            return None
        from qpdsl.cluster.cluster_address import ClusterAddress

        return ClusterAddress.parse(self.cluster)

    def check_cluster(self) -> None:
        """Raises UsageError where the options name no cluster, or something that does not go with one."""
        if self.cluster is None:
            if self.allow_mixed:
                raise UsageError("`--allow-mixed` needs `--cluster`, without which there is one process")
            return
        if getattr(self, "input", None) is None and getattr(self, "dataset", None) is None:
            raise UsageError("`--cluster` needs `--input`: it gives rows to replicas")
        for name, why in _ALONE.items():
            if getattr(self, name, None) not in (None, False, "none"):
                raise UsageError(f"`--{name.replace('_', '-')}` does not go with `--cluster`: {why}")
        _ = self.cluster_address


_OPTIONS = (
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Run rows on several replicas: local:4 (processes of this machine), local:1..4 (as many as it takes), "
        "ray:4 (a Ray that is started here), ray://HOST:PORT?replicas=8 (one that runs). The results are the same.",
    ),
    click.option(
        "--allow-mixed",
        is_flag=True,
        help="With --cluster: use replicas whose results could differ in bits too, and mark the rows that they ran.",
    ),
)


def cluster_options(command: Command) -> Command:
    """The options of every command that runs many rows."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
