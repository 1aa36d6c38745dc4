"""Replicas that are processes of this machine, each on the end of a socket."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection

from qpdsl.cluster.backends.backend import Link, ReplicaLost
from qpdsl.cluster.replica.messages import Command, ReplicaMessage, ReplicaSetup
from qpdsl.errors import UsageError, reason
from qpdsl.executor.engine.memory.budget import kv_bytes
from qpdsl.threads import cores

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from qpdsl.cluster.backends.replica_process import main; main(int(sys.argv[2]), sys.argv[3])"
)
_SECONDS_TO_END = 1.0


class ProcessBackend:
    """Starts up to `most` processes, which share out the cores of this machine, or its GPUs."""

    def __init__(self, most: int) -> None:
        self._most = most

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> Link:
        environment = dict(os.environ)
        device = setup.settings.device
        if device.startswith("cuda"):
            environment["CUDA_VISIBLE_DEVICES"] = self._gpu(number, device)
        else:
            setup = share_of_machine(setup, self._most)
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno()), name],
                stdin=subprocess.DEVNULL,
                # What a user's function prints is no result.
                stdout=sys.stderr.fileno() if _has_handle(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C is for the driver, which then ends its replicas.
                process_group=0,
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise UsageError(f"{name} cannot be started: {reason(error)}") from error
        finally:
            theirs.close()
        link = _ProcessLink(name, process, Connection(ours.detach()), asyncio.get_running_loop())
        link.send(setup)
        return link

    async def close(self) -> None:
        """Nothing is left once the links are closed."""

    def _gpu(self, number: int, device: str) -> str:
        """The one GPU that a replica sees. Raises UsageError where there are fewer than replicas."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = (
            [str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))]
            if listed is None
            else [name.strip() for name in listed.split(",") if name.strip()]
        )
        if device != "cuda":
            raise UsageError(f"`--device {device}` is one GPU", "with `--cluster`, `--device cuda` gives each its own")
        if not visible:
            raise UsageError("no GPU is to be seen on this machine", "without `--device cuda` replicas share its cores")
        if self._most > len(visible):
            some = f"{len(visible)} GPU{'s' if len(visible) > 1 else ''}"
            raise UsageError(
                f"there can be {self._most} replicas, and this machine shows {some}",
                f"`--cluster local:{len(visible)}` gives each its own",
            )
        return visible[number]


class _ProcessLink:
    """Threads read and write, so that neither ever waits for the other to read, even where one hangs."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], connection: Connection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._name = name
        self._process = process
        self._connection = connection
        self._loop = loop
        self._messages: asyncio.Queue[ReplicaMessage | None] = asyncio.Queue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"qpdsl {name}", daemon=True) for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, command: Command | ReplicaSetup) -> None:
        self._outbox.put(pickle.dumps(command))

    async def receive(self) -> ReplicaMessage:
        message = await self._messages.get()
        if message is None:
            raise ReplicaLost(f"{self._name} {await asyncio.to_thread(self._ending)}")
        return message

    async def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._outbox.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._connection.close()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError, RuntimeError):
            while True:
                message = pickle.loads(self._connection.recv_bytes())
                self._loop.call_soon_threadsafe(self._messages.put_nowait, message)
        with contextlib.suppress(RuntimeError):
            # A loop that is closed waits for nothing.
            self._loop.call_soon_threadsafe(self._messages.put_nowait, None)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (data := self._outbox.get()) is not None:
                self._connection.send_bytes(data)

    def _ending(self) -> str:
        """How the process ended, in words."""
        try:
            code = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was ended by {signal.Signals(-code).name}"


def share_of_machine(setup: ReplicaSetup, replicas: int) -> ReplicaSetup:
    """The setup of one of so many replicas that share the cores and the memory of this machine."""
    settings = setup.settings
    if settings.kv_bytes is None and replicas > 2:
        # One session would take a quarter of what is free, and each replica looks before the others have taken theirs.
        settings = replace(settings, kv_bytes=kv_bytes(None, "cpu", lambda: None) * 2 // replicas)
    threads = setup.threads
    if threads is None and settings.threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, cores() // replicas)
    return replace(setup, settings=settings, threads=threads)


def _has_handle(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
        return True
    except (AttributeError, OSError, ValueError):
        return False
