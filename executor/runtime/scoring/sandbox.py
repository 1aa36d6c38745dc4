"""Runs Python code that a model wrote, with its unit tests, in a process that can do little else.

The process is an isolated interpreter (`-I`) in an empty folder, without the caller's environment. It has limits of
processor time, memory, size and number of files, and may start no other process. Where the system allows namespaces
(Linux, for users other than root too) it has no network, sees no other process, finds all files but those of its
folder read-only, and cannot undo that. An audit hook refuses the same to Python code everywhere, and limits how much it
writes; where there are no namespaces, code that is written to get around the hook can. Files that the user can read it
can read. It is killed, and all that it started, when its time is over.

A test passes where nothing is raised. Functions of the tests that are called `test…` and need no argument are called,
and classes of `unittest` are run; an asynchronous test does not pass. That the tests were passed is told by a word that
is no part of what the code is given, so that code that ends the process passes nothing. Code and tests share an
interpreter: code that is written to deceive its tests can. The process runs this file as a script.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

_MEMORY = 1 << 30
_FILE_BYTES = 16 << 20
_FILES = 64
# How often files may be opened to be written, or folders made and files moved.
_WRITES = 256
# Of a busy machine a process gets less than a second of its processors in a second.
_CLOCK_FACTOR, _CLOCK_START = 3, 2.0


class NoSandbox(Exception):
    """Code cannot be run on this system; the message says why."""


def passes_tests(code: str, tests: str, seconds: float) -> bool:
    """Whether the code passes the tests in so many seconds of processor time, rounded up to whole ones.

    By the clock it has three times as long, and two seconds to start. Raises NoSandbox.
    """
    if sys.platform == "win32":
        raise NoSandbox("code is run in a process with limits of POSIX systems, which Windows does not have")
    word = secrets.token_hex(16).encode()
    question = {"code": code, "tests": tests, "seconds": math.ceil(seconds), "word": word.decode()}
    with tempfile.TemporaryDirectory(prefix="qpdsl-code-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-X", "utf8", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            return _answer(process, json.dumps(question).encode(), seconds * _CLOCK_FACTOR + _CLOCK_START) == word
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.communicate()


def _answer(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes:
    """What the process writes, as far as it is short, until it ends or its time is over."""
    assert process.stdin is not None and process.stdout is not None
    end, answer = time.monotonic() + seconds, b""
    with suppress(OSError):
        process.stdin.write(question)
        process.stdin.close()
    process.stdin = None
    while len(answer) <= 64:
        ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0.0))
        part = os.read(process.stdout.fileno(), 65) if ready else b""
        if not part:
            break
        answer += part
    return answer


def _serve() -> None:
    """The process: reads one question, and writes its word where the tests are passed."""
    question = json.loads(sys.stdin.buffer.read())
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if _separate(os.getcwd()):
        # The first process of a namespace takes all others in it along when it ends.
        child = os.fork()
        if child:
            os.close(out)
            os.waitpid(child, 0)
            os._exit(0)
        _end_with_parent()
    _limit(question["seconds"])
    passed = False
    with suppress(BaseException):
        sys.addaudithook(_Guard(os.path.realpath(os.getcwd())))
        passed = _run(question["code"], question["tests"])
    if passed:
        os.write(out, question["word"].encode())
    os._exit(0)


# Flags of the code of functions whose calls only make a generator, coroutine or asynchronous generator.
_RUN_LATER = 0x20 | 0x80 | 0x200


def _run(code: str, tests: str) -> bool:
    """Runs the code, and then the tests, in a module of their own. Raises what they raise."""
    import types

    main = types.ModuleType("__main__")
    sys.modules["__main__"], namespace = main, main.__dict__
    # What stands behind `if __name__ == "__main__"` is no part of a solution.
    namespace["__name__"] = "solution"
    exec(compile(code, "<code>", "exec", dont_inherit=True), namespace)
    namespace["__name__"], before = "__main__", dict(namespace)
    try:
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), namespace)
    except SystemExit as end:
        # So ends `unittest.main()`.
        return not end.code
    cases = []
    for name, value in list(namespace.items()):
        if before.get(name) is value:
            continue
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            if value.__code__.co_argcount > len(value.__defaults__ or ()):
                continue
            if value() is not None and value.__code__.co_flags & _RUN_LATER:
                raise TypeError(f"{name} is asynchronous or a generator: calling it runs nothing")
        elif isinstance(value, type) and any(base.__module__ == "unittest.case" for base in value.__mro__[1:]):
            cases.append(value)
    if not cases:
        return True
    import unittest

    load = unittest.defaultTestLoader.loadTestsFromTestCase
    result = unittest.TestResult()
    unittest.TestSuite(map(load, cases)).run(result)
    return result.wasSuccessful()


def _limit(seconds: int) -> None:
    import resource

    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: _MEMORY,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
        resource.RLIMIT_NOFILE: _FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for what, most in limits.items():
        # Some systems have no such limit, or a lower one.
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION = 0x20080522
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MS_BIND = 442, -100, 0x8000, 1, 4096


def _separate(folder: str) -> bool:
    """Leaves the namespaces of the caller, so that no network is left. False where the system does not allow it."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    apart = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS
    if libc.unshare(apart | _CLONE_NEWNS):
        return not libc.unshare(apart)
    place = os.fsencode(folder)

    def set_attributes(path: bytes, flags: int, given: int, taken: int) -> None:
        attributes = (ctypes.c_uint64 * 4)(given, taken, 0, 0)
        libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, flags, attributes, ctypes.sizeof(attributes))

    if libc.mount(place, place, None, _MS_BIND, None) == 0:
        set_attributes(b"/", _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, 0)
        set_attributes(place, 0, 0, _MOUNT_ATTR_RDONLY)
        os.chdir(folder)
    # Within its own namespaces the process is privileged, and could make the files writable again.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, none)
    return True


def _end_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# Events of Python's audit hooks that are refused, by what they begin with, and those that change the files they name.
_REFUSED = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.putenv",
    "ctypes.", "pty.", "signal.pthread_kill", "webbrowser.", "urllib.",
)  # fmt: skip
_CHANGES = frozenset(
    f"os.{word}"
    for word in ("remove", "rename", "rmdir", "mkdir", "truncate", "chmod", "chown", "link", "symlink", "utime")
)


class _Guard:
    """Refuses Python code to open connections, start processes, and change files outside of its folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writes = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
                self._check(event, path)
        elif event in _CHANGES:
            for path in args[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._check(event, path)

    def _check(self, event: str, path: object) -> None:
        self._writes += 1
        if self._writes > _WRITES:
            raise PermissionError(f"{event} is allowed {_WRITES} times")
        if isinstance(path, (str, bytes)):
            whole = os.path.realpath(os.fsdecode(path))
            if os.path.commonpath((whole, self._folder)) != self._folder and whole != os.devnull:
                raise PermissionError(f"{event} outside of the folder is not allowed here")


if __name__ == "__main__":
    _serve()
