"""The protocol between the driver and whatever runs its replicas."""

from __future__ import annotations

from typing import Protocol

from qpdsl.cluster.replica.messages import Command, ReplicaMessage, ReplicaSetup


class ReplicaLost(Exception):
    """A replica that is gone: killed, out of memory, or on a machine that is gone. The message says what is known."""


class Link(Protocol):
    """The driver's end of one replica. Used from one event loop."""

    def send(self, command: Command) -> None:
        """Sends a command. One that a lost replica does not get raises nothing: `receive` tells that it is lost."""

    async def receive(self) -> ReplicaMessage:
        """The next message. Raises ReplicaLost."""

    async def close(self) -> None:
        """Ends the replica, at once, whatever it is doing."""


class ReplicaBackend(Protocol):
    """Starts replicas."""

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> Link:
        """A replica that begins to load. `number` is its place: at any time there is one with that number.

        Raises UserError where there can be none, and ReplicaLost.
        """

    async def close(self) -> None:
        """Ends what the backend itself has started, once its replicas are closed."""
