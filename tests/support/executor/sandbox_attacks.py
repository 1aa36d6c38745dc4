"""What code that was written to break out of the sandbox tries, and a script that lets it try.

`python sandbox_attacks.py FOLDER [WALL…]` runs every attack behind these walls, and prints as JSON which succeeded.
It is a process of its own as its environment and its files are what is attacked, and since it may be another user's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

# What an attack may use: FOLDER with `secret` and the like, a PORT, the CALLER and a VICTIM, two processes.
_TOOLS = """
import ctypes, fcntl, gc, glob, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
def found(pattern, word):
    for path in glob.glob(pattern):
        try:
            with open(path, 'rb') as file:
                if word in file.read(1 << 20): return True
        except OSError: pass
    return False
"""
# Each raises nothing where it succeeds.
ATTACKS = {
    "key in the caller's environment": "assert b'sk-SECRET' in open(f'/proc/{CALLER}/environ', 'rb').read()",
    "memory of the caller": "open(f'/proc/{CALLER}/mem', 'rb')",
    "key in any environment": "assert found('/proc/[0-9]*/environ', b'sk-SECRET')",
    "command lines of others": "assert found('/proc/[0-9]*/cmdline', b'tell-tale')",
    "read a file of the user": "assert 'SECRET' in open(FOLDER + '/secret').read()",
    "list a folder of the user": "assert os.listdir(FOLDER)",
    "write outside": "open(FOLDER + '/written', 'w').write('1')",
    "write after switching off every guard": """
for thing in gc.get_objects():
    if type(thing).__name__ == '_Guard': type(thing).__call__ = lambda *given: None
open(FOLDER + '/written', 'w').write('1')""",
    "remove outside": "os.remove(FOLDER + '/removable')",
    "move outside": "os.rename(FOLDER + '/movable', FOLDER + '/moved')",
    "make a folder outside": "os.mkdir(FOLDER + '/made')",
    "rights outside": """
os.chmod(FOLDER + '/rights', 0)
assert os.stat(FOLDER + '/rights').st_mode & 0o777 == 0""",
    "times outside": """
os.utime(FOLDER + '/times', (1, 1))
assert os.stat(FOLDER + '/times').st_mtime == 1""",
    "attributes outside": "os.setxattr(FOLDER + '/times', 'user.own', b'1')",
    "empty a file that can be read": """
os.open(FOLDER + '/library/emptied', os.O_RDONLY | os.O_TRUNC)
assert os.stat(FOLDER + '/library/emptied').st_size == 0""",
    "empty a file that is opened neither way": """
os.open(FOLDER + '/library/emptied', 3 | os.O_TRUNC)
assert os.stat(FOLDER + '/library/emptied').st_size == 0""",
    "open a file neither way": "os.open(FOLDER + '/library/linked', 3)",
    "memory that is no file": "os.memfd_create('m')",
    "cut a file that can be read": "os.truncate(FOLDER + '/library/cut', 1)",
    "hard link": "os.link(FOLDER + '/library/linked', 'link')\nopen('link', 'a').write('1')",
    "symbolic link": "os.symlink(FOLDER, 'way')\nopen('way/written', 'w').write('1')",
    "shared memory": "open('/dev/shm/qpdsl-attack', 'w').write('1')",
    "a descriptor of the caller": """
def secret(place):
    try: return b'SECRET' in os.pread(place, 100, 0)
    except OSError: return False
assert any(secret(place) for place in range(3, 60))""",
    "TCP": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'1', ('127.0.0.1', PORT))",
    "a server": "socket.create_server(('127.0.0.1', 0))",
    "socket by path": "socket.socket(socket.AF_UNIX).connect(FOLDER + '/socket')",
    "socket by abstract name": "socket.socket(socket.AF_UNIX).connect('\\0qpdsl-attack-' + str(CALLER))",
    "datagram by path": """
socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'1', FOLDER + '/datagrams')""",
    "FIFO": "os.write(os.open(FOLDER + '/fifo', os.O_WRONLY | os.O_NONBLOCK), b'1')",
    "fork": "os.fork() or os._exit(0)",
    "a shell": """
import _posixsubprocess
read, write = os.pipe()
given = [[b'/bin/sh', b'-c', b'echo > ' + (FOLDER + '/written').encode()], [b'/bin/sh'], True, (), None, None]
given += [-1, -1, -1, -1, -1, -1, read, write, False, False, -1, None, None, None, -1, None, True]
_posixsubprocess.fork_exec(*given)""",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "outlive": """
if os.fork() == 0:
    os.setsid()
    import time
    time.sleep(0.5)
    open(FOLDER + '/outlived', 'w').write('1')
    os._exit(0)""",
    "a session of its own": "os.setsid()",
    "signal to the caller": "os.kill(CALLER, 0)",
    "signal to another": "os.kill(VICTIM, 0)",
    "signal by a file": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, VICTIM)",
    "signal by a descriptor": "os.pidfd_open(VICTIM)",
    "priority of another": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "limits of another": "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (5, 5))",
    "trace another": "assert libc.ptrace(0x4206, VICTIM, None, None) == 0",
    "memory limit": "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))",
    "namespaces": "assert libc.unshare(0x10000000) == 0",
    "mount": "assert libc.unshare(0x10020000) == 0 and libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0",
    "io_uring": "assert libc.syscall(ctypes.c_long(425), 2, ctypes.create_string_buffer(120)) >= 0",
    "watch the names in a folder": "assert libc.inotify_add_watch(libc.inotify_init1(0), FOLDER.encode(), 0xFFF) >= 0",
    "message queue": "assert libc.mq_open(b'/qpdsl-attack', 0o102, 0o600, None) >= 0",
    "memory of System V": "assert libc.shmget(0, 4096, 0o1600) >= 0",
}
# Behind no wall at all these are refused too: the caller cannot be looked into while code runs, and limits only sink.
NEVER = frozenset(
    {"key in the caller's environment", "memory of the caller", "a descriptor of the caller", "memory limit"}
)
# Those that the kernel's settings may refuse, or refuses to root without its capabilities.
MAYBE = frozenset(
    {"namespaces", "mount", "io_uring", "trace another", "message queue", "a session of its own"}
    | {"priority of another", "key in any environment"}
)

# What published tests of code do, HumanEval and MBPP among them.
LEGITIMATE = """
import asyncio, bisect, collections, copy, datetime, decimal, fractions, functools, hashlib, heapq, itertools, json
import math, operator, os, pathlib, queue, random, re, shutil, statistics, string, sys, tempfile, threading, time
import typing, unittest, uuid
from concurrent.futures import ThreadPoolExecutor
try:
    import numpy
    assert numpy.linalg.inv(numpy.eye(8) * 2)[0, 0] == 0.5
except ModuleNotFoundError: pass
assert list(ThreadPoolExecutor(4).map(math.sqrt, [4, 9])) == [2, 3]
async def later(): await asyncio.sleep(0.001); return 5
assert asyncio.run(later()) == 5
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'a.txt')
    path.write_text('text')
    shutil.copy(path, path.with_name('b.txt'))
    os.rename(path.with_name('b.txt'), path)
    assert path.read_text() == 'text'
pathlib.Path('made/within').mkdir(parents=True)
shutil.rmtree('made')
open(os.devnull, 'w').write('x')
assert datetime.datetime(2024, 2, 29).isoformat() and uuid.uuid4() and random.random() < 1 and os.urandom(4)
assert time.localtime() and re.sub('a+', 'b', 'caat') == 'cbt' and json.loads('[1]') == [1]
import signal
signal.signal(signal.SIGUSR1, lambda *given: None)
signal.raise_signal(signal.SIGUSR1)
"""


_EACH = """
succeeded = []
for name, attack in ATTACKS.items():
    try: exec(attack, globals())
    except BaseException: continue
    succeeded.append(name)
if succeeded:
    open(FOLDER + '/told', 'w').write('\\n'.join(succeeded))
"""


def _alone(attack: str) -> bool:
    from qpdsl.executor.runtime.sandbox.run import passes_tests

    return passes_tests(attack, "", 5, unconfined=True)


def _main(folder: str, walls: list[str]) -> None:
    from qpdsl.executor.runtime.sandbox import run

    place = Path(folder)
    (place / "library").mkdir()
    run._WALLS = frozenset(walls)
    # A folder that may be read and is the user's, as that of an interpreter in his home is.
    run._SYSTEM = (*run._SYSTEM, str(place / "library"))
    names = ["secret", "removable", "movable", "rights", "times", "library/emptied", "library/cut", "library/linked"]
    for name in names:
        (place / name).write_text("SECRET")
    os.mkfifo(place / "fifo")
    fifo = os.open(place / "fifo", os.O_RDWR | os.O_NONBLOCK)
    server = socket.create_server(("127.0.0.1", 0))
    sockets = [(f"{folder}/socket", socket.SOCK_STREAM), (f"\0qpdsl-attack-{os.getpid()}", socket.SOCK_STREAM)]
    listening = []
    for name, kind in [*sockets, (f"{folder}/datagrams", socket.SOCK_DGRAM)]:
        listening.append(socket.socket(socket.AF_UNIX, kind))
        listening[-1].bind(name)
        if kind == socket.SOCK_STREAM:
            listening[-1].listen(5)
    os.set_inheritable(os.open(place / "secret", os.O_RDONLY), True)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "tell-tale"])
    known = {"FOLDER": folder, "PORT": server.getsockname()[1], "CALLER": os.getpid(), "VICTIM": victim.pid}
    setup = "".join(f"{name} = {value!r}\n" for name, value in known.items()) + _TOOLS
    together = f"{setup}\nATTACKS = {ATTACKS!r}\n{_EACH}"
    try:
        succeeded = []
        # Together, as a process for each takes long; where one succeeds and cannot say so, each alone.
        if not run.passes_tests(together, "assert not succeeded", 10, unconfined=True):
            if (place / "told").exists():
                succeeded = (place / "told").read_text().splitlines()
            else:
                succeeded = [name for name, attack in ATTACKS.items() if _alone(f"{setup}\n{attack}")]
        legitimate = run.passes_tests(LEGITIMATE, "", 5, unconfined=True)
        reached = bool(_reads(fifo))
        time.sleep(0 if walls else 1)
        left = sorted(set(os.listdir(folder)) - {name.partition("/")[0] for name in names})
        own = run.walls()
        print(json.dumps({
            "succeeded": succeeded, "legitimate": legitimate, "fifo": reached, "left": left,
            "held": sorted(own.held), "lacking": dict(own.lacking), "refusal": own.refusal,
        }))  # fmt: skip
    finally:
        victim.kill()


def _reads(place: int) -> bytes:
    try:
        return os.read(place, 10)
    except BlockingIOError:
        return b""


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
