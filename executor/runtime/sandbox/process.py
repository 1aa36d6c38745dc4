"""The process that runs code of a model: it builds its walls, says which of them hold, and then runs the code.

It is a script for an isolated interpreter, and imports nothing of this package. One line of JSON is its question; what
holds goes to stderr before any code runs, and nothing else ever does, so that the code has no part in it. The word of
the question goes to stdout where the tests are passed, else why they are not.

Functions of the tests that are called `test…` and need no argument are called, and classes of `unittest` are run; an
asynchronous test does not pass. Code and tests share an interpreter: code that is written to deceive its tests can.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

_MEMORY = 1 << 30
_OPEN_FILES = 64
# Threads beyond all that the machine has.
_THREADS = 64
_NOBODY = 65534
# What a failure shows at most: lines of the code that it came by, characters of one, and of the error's message.
_MAX_LINES, _MAX_LINE, _MAX_FAILURE = 4, 200, 1000


def _serve() -> None:
    os.environ.clear()
    question = json.loads(sys.stdin.buffer.read())
    out, told, nowhere = os.dup(1), os.dup(2), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    walls = _Walls(question) if sys.platform.startswith("linux") else None
    if walls is not None:
        walls.build(keep=(0, 1, 2, out, told))
    else:
        _limit(question)
    none: Any = {}, {"seccomp, Landlock and namespaces": "only Linux has them"}
    os.write(told, json.dumps(none if walls is None else (walls.held, walls.lacking)).encode())
    os.close(told)
    word, code, tests = question["word"], question["code"], question["tests"]
    failure = "the code was not run"
    if question["unconfined"] or (walls is not None and walls.confine):
        try:
            failure = _run(code, tests)
        except BaseException as error:  # code may raise anything, also where it is asked for its words
            failure = "an exception that cannot be shown"
            with suppress(BaseException):
                failure = _told(error, {"<code>": code, "<tests>": tests})
    os.write(out, (failure or word).encode("utf-8", "replace"))
    os._exit(0)


def _told(error: BaseException, texts: dict[str, str]) -> str:
    """The last lines of the code and its tests that an error came by, and what it says."""
    import traceback

    lines = []
    for place, number in traceback.walk_tb(error.__traceback__):
        if (name := place.f_code.co_filename) in texts:
            line = texts[name].splitlines()[number - 1].strip()
            lines.append(f"{name.strip('<>')}, line {number}: {line}"[:_MAX_LINE])
    said = "".join(traceback.format_exception_only(error)).strip()
    return "\n".join([*lines[-_MAX_LINES:], said[:_MAX_FAILURE]])


# Flags of the code of functions whose calls only make a generator, coroutine or asynchronous generator.
_RUN_LATER = 0x20 | 0x80 | 0x200


def _run(code: str, tests: str) -> str:
    """Runs the code, and then the tests, in a module of their own: why they fail, or "". Raises what they raise."""
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
        return f"SystemExit: {end.code}" if end.code else ""
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
        return ""
    import unittest

    load = unittest.defaultTestLoader.loadTestsFromTestCase
    result = unittest.TestResult()
    unittest.TestSuite(map(load, cases)).run(result)
    if result.wasSuccessful():
        return ""
    said = [text for _, text in (*result.errors, *result.failures)] or ["a test that has to fail passes"]
    return "\n".join(said[0].strip().splitlines()[-_MAX_LINES:])[-_MAX_FAILURE:]


def _limit(question: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_CPU: question["seconds"],
        resource.RLIMIT_AS: _MEMORY,
        resource.RLIMIT_FSIZE: question["file_bytes"],
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    with suppress(OSError, ValueError, IndexError), open("/proc/loadavg") as load:
        # A thread counts as a process of its user, who may have others.
        limits[resource.RLIMIT_NPROC] = int(load.read().split()[3].partition("/")[2]) + _THREADS
    for what, most in limits.items():
        # Some systems have no such limit, or a lower one.
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_APART = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNS
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 8, 4096, 16384, 1 << 18, 2
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = -100, 0x8000, 1, 2
# System calls without a function in the C library, by numbers that all machines share, but for the first.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
# Landlock's rights: to write a file, read one, list a folder, remove folders and files, make folders, files and links,
# move, and truncate.
_WRITE, _READ, _LIST, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_CHANGE = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13


class _Lacking(Exception):
    """A wall cannot be built; the message says why."""


class _Walls:
    """`held` says what each wall that was built holds, `lacking` why the others were not, by their names."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._question = question
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folder = os.getcwd()
        self._proc = False
        self.held: dict[str, str] = {}
        self.lacking: dict[str, str] = {}

    @property
    def confine(self) -> bool:
        """Whether code can be run behind them: both of the others close the files, the first all else."""
        return "seccomp" in self.held and bool(self.held.keys() & {"Landlock", "namespaces"})

    def build(self, keep: tuple[int, ...]) -> None:
        if os.getuid() == 0:
            self._become_nobody()
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._try("namespaces", self._separate)
        # Where it is root, and within namespaces of its own, the process is privileged.
        header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        self._libc.capset(header, none)
        _limit(self._question)
        os.chdir(self._folder)
        self._try("Landlock", self._restrict_files)
        for descriptor in range(_OPEN_FILES * 4):
            if descriptor not in keep:
                with suppress(OSError):
                    os.close(descriptor)
        self._try("seccomp", self._filter_calls)

    def _try(self, name: str, build: Any) -> None:
        try:
            if name not in self._question["walls"]:
                raise _Lacking("switched off")
            self.held[name] = build()
        except (_Lacking, OSError) as error:
            self.lacking[name] = error.strerror if isinstance(error, OSError) and error.strerror else str(error)

    def _prctl(self, option: int, value: Any, more: Any = 0) -> None:
        self._checked(self._libc.prctl(option, ctypes.c_ulong(value), more, 0, 0))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def _become_nobody(self) -> None:
        """Where others than root can read what Python needs, root becomes a user who owns nothing."""
        if not all(map(_open_to_all, self._question["own"])):
            return
        with suppress(OSError):
            os.chown(self._folder, _NOBODY, _NOBODY)
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            # A process that changed its user cannot say who it is in a namespace.
            self._prctl(_PR_SET_DUMPABLE, 1)

    def _separate(self) -> str:
        """Leaves the caller's namespaces for some in which there is nothing but what Python needs."""
        user, group = os.getuid(), os.getgid()
        self._checked(self._libc.unshare(_APART))
        # The first process of a namespace takes all others in it along when it ends.
        child = os.fork()
        if child:
            os.closerange(0, _OPEN_FILES * 4)
            os.waitpid(child, 0)
            os._exit(0)
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as map:
                map.write(text)
        self._change_root()
        return "network, processes and files of its own" + ("" if self._proc else ", without /proc")

    def _change_root(self) -> None:
        root = os.path.realpath(self._folder)
        self._mount(None, "/", None, _MS_REC | _MS_PRIVATE)
        self._mount("tmpfs", root, "tmpfs", _MS_NOSUID, "size=1m,mode=755")
        links = []
        for path in self._question["readable"]:
            whole = os.path.realpath(path)
            if whole != path:
                links.append((path, whole))
            if not os.path.lexists(root + whole) and os.path.exists(whole):
                _make_place(root + whole, folder=os.path.isdir(whole))
                self._mount(whole, root + whole, None, _MS_BIND | _MS_REC)
        for path, whole in links:
            # One that lies in what is there already is there too.
            with suppress(OSError):
                os.makedirs(root + os.path.dirname(path), exist_ok=True)
                os.symlink(whole, root + path)
        for name in ("/proc", "/tmp"):
            os.makedirs(root + name, exist_ok=True)
        with suppress(OSError):
            self._mount("proc", root + "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            self._proc = True
        given = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
        size = ctypes.c_size_t(ctypes.sizeof(given))
        self._call(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(root), _AT_RECURSIVE, given, size)
        most = f"size={self._question['bytes']},nr_inodes={self._question['files']},mode=700"
        self._mount("tmpfs", root + "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, most)
        os.chdir(root)
        self._call(_PIVOT_ROOT[os.uname().machine], b".", b".")
        self._checked(self._libc.umount2(b".", _MNT_DETACH))
        self._folder = "/tmp"
        os.chdir(self._folder)

    def _mount(self, what: str | None, place: str, kind: str | None, flags: int, data: str | None = None) -> None:
        texts = [None if text is None else os.fsencode(text) for text in (what, place, kind, data)]
        self._checked(self._libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))

    def _call(self, number: int, *arguments: Any) -> int:
        return self._checked(self._libc.syscall(ctypes.c_long(number), *arguments))

    def _restrict_files(self) -> str:
        version = self._call(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
        # Each version knows more rights. The network and signals are the filter's too.
        known = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
        rules = (ctypes.c_uint64 * 3)(known, 3, 3)
        size = ctypes.c_size_t(8 if version < 4 else 16 if version < 6 else 24)
        ruleset = self._call(_LANDLOCK_CREATE, rules, size, 0)
        readable = [*self._question["readable"], *(["/proc"] if self._proc else [])]
        places = [*((path, _READ | _LIST) for path in readable), (os.devnull, _READ | _WRITE | _TRUNCATE)]
        for path, rights in [*places, (self._folder, _READ | _LIST | _WRITE | _TRUNCATE | _CHANGE)]:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights & known & (-1 if os.path.isdir(path) else _READ | _WRITE | _TRUNCATE)
            rule = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
            self._call(_LANDLOCK_ADD, ruleset, 1, rule, 0)
            os.close(place)
        self._call(_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)
        return f"version {version}: reads what Python needs, writes in an empty folder"

    def _filter_calls(self) -> str:
        program = self._question["filter"]
        if program is None:
            raise _Lacking(f"no filter for {os.uname().machine}")
        number = os.getpid()
        parts = b"".join(
            code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + (number if k is None else k).to_bytes(4, sys.byteorder)
            for code, yes, no, k in program
        )
        text = ctypes.create_string_buffer(parts, len(parts))
        whole = _Program(len(program), ctypes.cast(text, ctypes.c_void_p))
        self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole))
        return "no network, no other process, no other program"


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("parts", ctypes.c_void_p)]


def _make_place(path: str, *, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _open_to_all(path: str) -> bool:
    """Whether every user can go to a folder and list it."""
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.stat(place).st_mode & 0o4:
        return False
    while place != os.path.dirname(place):
        if os.path.exists(place) and not os.stat(place).st_mode & 0o1:
            return False
        place = os.path.dirname(place)
    return True


if __name__ == "__main__":
    _serve()
