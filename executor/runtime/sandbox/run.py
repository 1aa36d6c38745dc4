"""Starts the process that runs code of a model, waits for its word, and ends it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import platform
import re
import secrets
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qpdsl.executor.runtime.sandbox.system_calls import filter_of

# What the code may have in its folder: entries, bytes in all of them, and in one.
_MAX_FILES, _MAX_BYTES, _MAX_FILE_BYTES = 256, 64 << 20, 16 << 20
# Of a busy machine a process gets less than a second of its processors in a second.
_CLOCK_FACTOR, _CLOCK_START = 3, 2.0
# Seconds until the walls stand, and between two looks at the folder.
_START, _LOOK = 60.0, 0.1
# Bytes of its answer that are read, and what is said where there are none.
_MAX_ANSWER = 8192
_NOTHING_SAID = (
    "the process ended before its tests did: it took too much time or memory, wrote too much, or left by itself"
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
# Walls that are tried.
_WALLS = frozenset({"namespaces", "Landlock", "seccomp"})
# What the interpreter and libraries read besides their own folders: libraries of the system, time zones, devices
# without a state, and how many processors and how much memory there is.
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/random",
    "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


class NoSandbox(Exception):
    """Code cannot be run on this system; the message says why."""


@dataclass(frozen=True)
class Walls:
    """What the sandbox has on this machine: what each wall holds, and why others are lacking, by their names."""

    held: Mapping[str, str]
    lacking: Mapping[str, str]

    @property
    def refusal(self) -> str | None:
        """Why code is not run behind them, None where it is."""
        # Both of the others close the files.
        closed = self.held.keys() & {"Landlock", "namespaces"}
        named = [f"{name} ({why})" for name, why in self.lacking.items() if name == "seccomp" or not closed]
        return f"the sandbox here lacks: {', '.join(named)}" if named else None


def walls() -> Walls:
    """What holds on this machine, found by starting the process with nothing to run. Raises NoSandbox."""
    return _asked("", "", 1.0, unconfined=False)[1]


@cache
def refusal() -> str | None:
    """Why no code can be run in the sandbox of this machine, None where it can."""
    try:
        return walls().refusal
    except NoSandbox as error:
        return str(error)


def passes_tests(code: str, tests: str, seconds: float, *, unconfined: bool = False) -> bool:
    """Whether the code passes the tests; see `failure_of`."""
    return failure_of(code, tests, seconds, unconfined=unconfined) is None


def failure_of(code: str, tests: str, seconds: float, *, unconfined: bool = False) -> str | None:
    """Why the code does not pass the tests in so many seconds of processor time, rounded up to whole ones; else None.

    By the clock it has three times as long, and two seconds more. Raises NoSandbox where a wall is lacking, which
    `unconfined` permits, and where there are no limits of processes.
    """
    failure, held = _asked(code, tests, seconds, unconfined=unconfined)
    if held.refusal is not None and not unconfined:
        raise NoSandbox(held.refusal)
    return failure


def _asked(code: str, tests: str, seconds: float, *, unconfined: bool) -> tuple[str | None, Walls]:
    if sys.platform == "win32":
        raise NoSandbox("code is run in a process with limits of POSIX systems, which Windows does not have")
    word = secrets.token_hex(16).encode()
    question = {
        "code": code,
        "tests": tests,
        "seconds": math.ceil(seconds),
        "word": word.decode(),
        "unconfined": unconfined,
        "walls": sorted(_WALLS),
        **_needed(),
    }
    with _folder() as folder, _unreadable():
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", str(Path(__file__).with_name("process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            # Sets are in the same order each time. There is nothing else, so it is as isolated as by `-I`.
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            held = _walls_of(process, json.dumps(question).encode())
            files = None if "namespaces" in held.held or unconfined else _HeldFiles(process.pid, folder)
            if files is not None and held.refusal is None:
                files.check()
            answer = _answer(process, folder, files, seconds * _CLOCK_FACTOR + _CLOCK_START)
            return None if answer == word else _shown(answer), held
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.communicate()


def _shown(answer: bytes) -> str:
    """What the process says of a failure, the same in every run: addresses in memory are left out."""
    return _ADDRESS.sub("0x…", answer.decode("utf-8", "replace").strip()) or _NOTHING_SAID


@cache
def _needed() -> Mapping[str, Any]:
    """What does not change from one question to the next: the filter, and what the interpreter reads."""
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    libraries = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    # Other folders on the path are those of checkouts, whose files are their owner's.
    paths = [path for path in sys.path if path and any(_is_within(os.path.realpath(path), one) for one in prefixes)]
    own = [path for path in dict.fromkeys([*libraries, *paths]) if os.path.isdir(path)]
    return {
        "filter": filter_of(platform.machine()),
        "own": own,
        "readable": [path for path in dict.fromkeys([*own, *_SYSTEM]) if os.path.exists(path)],
        "files": _MAX_FILES,
        "bytes": _MAX_BYTES,
        "file_bytes": _MAX_FILE_BYTES,
    }


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _walls_of(process: subprocess.Popen[bytes], question: bytes) -> Walls:
    """Asks, and reads which walls stand: the process closes that pipe before it runs any code."""
    assert process.stdin is not None and process.stderr is not None
    with suppress(OSError):
        process.stdin.write(question)
        process.stdin.close()
    process.stdin = None
    said = _read(process.stderr.fileno(), time.monotonic() + _START)
    process.stderr.close()
    process.stderr = None
    try:
        return Walls(*json.loads(said))
    except (ValueError, TypeError):
        raise NoSandbox("the process that runs code did not start") from None


def _answer(process: subprocess.Popen[bytes], folder: str, files: _HeldFiles | None, seconds: float) -> bytes:
    """What the process writes, as far as it is short, until it ends, its time is over or its folder is full."""
    assert process.stdout is not None
    end, answer, look = time.monotonic() + seconds, b"", 0.0
    while len(answer) <= _MAX_ANSWER and (left := end - (now := time.monotonic())) > 0:
        # Code that keeps on writing here is looked at too.
        if now >= look:
            if _is_full(folder, files):
                return b""
            look = time.monotonic() + _LOOK
        ready, _, _ = select.select([process.stdout], [], [], min(left, _LOOK))
        if not ready:
            continue
        part = os.read(process.stdout.fileno(), _MAX_ANSWER)
        if not part:
            break
        answer += part
    return b"" if _is_full(folder, files) else answer[:_MAX_ANSWER]


def _read(descriptor: int, end: float) -> bytes:
    """All that is written there until it is closed, or the time is over."""
    said = b""
    while select.select([descriptor], [], [], max(end - time.monotonic(), 0.0))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        said += part
    return said


def _is_full(folder: str, files: _HeldFiles | None) -> bool:
    """Whether the code has made more than it may; where it has a file system of its own, that has the same bounds."""
    size = 0
    try:
        for number, entry in enumerate(_entries(folder)):
            size += entry.st_blocks * 512
            if number >= _MAX_FILES or size > _MAX_BYTES:
                return True
        return files is not None and size + files.bytes() > _MAX_BYTES
    except OSError:
        # What cannot be looked into may be as large as it likes.
        return True


class _HeldFiles:
    """Files of a folder that a process has unlinked, and holds by a descriptor or a mapping."""

    def __init__(self, process: int, folder: str) -> None:
        self._process = f"/proc/{process}"
        self._folder = os.fsencode(os.path.realpath(folder))

    def check(self) -> None:
        """Raises NoSandbox where the kernel does not show them."""
        try:
            self.bytes()
        except OSError as error:
            raise NoSandbox(f"the sandbox here cannot see which files its code holds: {error.strerror}") from error

    def bytes(self) -> int:
        """What they take; one that has ended holds nothing. Raises OSError where they are not shown."""
        try:
            return self._bytes()
        except OSError:
            if self._has_ended():
                return 0
            raise

    def _bytes(self) -> int:
        """The size of one that is only mapped is not shown: it counts as the largest possible."""
        sizes: dict[int, int] = {}
        with self._seen_by_its_user():
            with open(f"{self._process}/maps", "rb") as maps:
                for line in maps:
                    _, _, _, _, inode, *path = line.rstrip(b"\n").split(None, 5)
                    if int(inode) and (not path or _is_unlinked(path[0], self._folder)):
                        sizes[int(inode)] = _MAX_FILE_BYTES
            for name in os.listdir(f"{self._process}/fd"):
                with suppress(FileNotFoundError):
                    held = os.stat(f"{self._process}/fd/{name}")
                    if stat.S_ISREG(held.st_mode) and not held.st_nlink:
                        sizes[held.st_ino] = held.st_blocks * 512
        return sum(sizes.values())

    def _has_ended(self) -> bool:
        """Whether the process has given up its memory: what is left of one is shown to root alone."""
        with suppress(FileNotFoundError, ProcessLookupError), open(f"{self._process}/status", "rb") as status:
            return b"\nVmSize:" not in status.read()
        return True

    @contextlib.contextmanager
    def _seen_by_its_user(self) -> Iterator[None]:
        """A process is shown to its own user; root is another where it has made itself one to run the code."""
        if os.geteuid() != 0:
            yield
            return
        own, libc = os.stat(self._process), ctypes.CDLL(None)
        libc.setfsgid(own.st_gid)
        libc.setfsuid(own.st_uid)
        try:
            yield
        finally:
            libc.setfsuid(0)
            libc.setfsgid(0)


def _is_unlinked(path: bytes, folder: bytes) -> bool:
    return path.startswith(folder + b"/") and path.endswith(b" (deleted)")


def _entries(folder: str) -> Iterator[os.stat_result]:
    """What lies in a folder, which is being changed meanwhile."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            with suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from _entries(entry.path)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="qpdsl-code-")
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Removes a folder with whatever is in it, however deep: what lies in its folders is moved up first."""
    number = 0
    with suppress(OSError):
        while names := os.listdir(folder):
            for name in names:
                place = os.path.join(folder, name)
                if not os.path.isdir(place) or os.path.islink(place):
                    os.unlink(place)
                    continue
                os.chmod(place, 0o700)
                for inner in os.listdir(place):
                    number += 1
                    os.rename(os.path.join(place, inner), os.path.join(folder, f"moved-{number}"))
                os.rmdir(place)
        os.rmdir(folder)


_changing = threading.Lock()
_running = 0
_before = 0


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    """While code runs, no other process of the user can read the memory and the environment of this one."""
    global _running, _before
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    if prctl is None:
        yield
        return
    with _changing:
        _running += 1
        if _running == 1:
            _before = prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
            prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        with _changing:
            _running -= 1
            if _running == 0 and _before == 1:
                prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
