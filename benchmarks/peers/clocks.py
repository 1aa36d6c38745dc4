"""Processor time and memory of a process, as far as the system tells.

This loads nothing but the standard library: peers run in environments that have little else.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def processor_seconds() -> float:
    """Processor time of this process and of all that it started, those that run still among them."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + _living_children()


def resident() -> tuple[int, int]:
    """Bytes of this process in memory, now and at the most; zeros where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return sizes.get("VmRSS", 0), sizes.get("VmHWM", 0)


def _living_children() -> float:
    """Read where the system tells it (Linux), in its clock ticks, which are hundredths of a second."""
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        for tasks in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                for child in map(int, tasks.read_text().split()):
                    # Behind the name in brackets: state, …, the 12th and 13th are user and system time.
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    ticks += int(fields[11]) + int(fields[12])
                    waiting.append(child)
            except OSError:  # it has ended meanwhile
                continue
    return ticks / os.sysconf("SC_CLK_TCK")
