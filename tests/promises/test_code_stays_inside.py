"""Code that a model wrote stays in its sandbox, on every machine that has walls for one, or it is not run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.executor import sandbox_attacks
from tests.support.executor.sandbox_attacks import ATTACKS, MAYBE, NEVER

ROOT = Path(__file__).parents[2]
# What kinds of machines have: most; Docker and Ubuntu 24.04, where namespaces are off; kernels without Landlock.
MACHINES = {
    "all walls": ("namespaces", "Landlock", "seccomp"),
    "no namespaces": ("Landlock", "seccomp"),
    "no Landlock": ("namespaces", "seccomp"),
}
OTHER_USER = 12345

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the walls are those of Linux")


@pytest.fixture
def folder() -> Iterator[str]:
    """One that every user can enter, whatever pytest's own are."""
    made = tempfile.mkdtemp(dir="/tmp")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def attacked(folder: str, walls: tuple[str, ...], user: int | None = None, before: str = "") -> dict[str, Any]:
    python = sys.executable if user is None else "/usr/bin/python3"
    command = [python, "-P", "-B", sandbox_attacks.__file__, folder, *walls]
    if before:
        command = ["unshare", "-U", "--map-root-user", "sh", "-c", f'{before}; exec "$@"', "sh", *command]
    environment = {"OPENAI_API_KEY": "sk-SECRET", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": "/tmp"}
    if user is not None:
        os.chown(folder, user, user)
    done = subprocess.run(
        command, env=environment, user=user, group=user, capture_output=True, text=True, timeout=180, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if missing := set(walls) - set(found["held"]):
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}: {found['lacking']}")
    return found


def holds(found: dict[str, Any]) -> None:
    assert found["succeeded"] == []
    assert found["legitimate"]
    assert not found["fifo"]
    assert found["left"] == ["datagrams", "fifo", "socket"]
    assert found["refusal"] is None


@pytest.mark.parametrize("machine", MACHINES)
def test_no_attack_succeeds(machine: str, folder: str) -> None:
    holds(attacked(folder, MACHINES[machine]))


@pytest.mark.parametrize("machine", MACHINES)
def test_no_attack_of_another_user_succeeds(machine: str, folder: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    version = subprocess.run(["/usr/bin/python3", "-c", "import sys; assert sys.version_info >= (3, 11)"], check=False)
    readable = subprocess.run(["test", "-r", sandbox_attacks.__file__], user=OTHER_USER, group=OTHER_USER, check=False)
    if version.returncode or readable.returncode:
        pytest.skip("another user has no Python of 3.11, or cannot read this checkout")
    holds(attacked(folder, MACHINES[machine], OTHER_USER))


def test_no_attack_succeeds_where_namespaces_are_off(folder: str) -> None:
    """The kernel refuses them, as Docker's default does; nothing is switched off."""
    before = "echo 0 > /proc/sys/user/max_user_namespaces"
    trial = subprocess.run(["unshare", "-U", "--map-root-user", "sh", "-c", before], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip("no user namespaces to switch off")
    found = attacked(folder, MACHINES["no namespaces"], before=before)
    holds(found)


def test_the_attacks_are_real(folder: str) -> None:
    found = attacked(folder, ())
    assert set(ATTACKS) - set(found["succeeded"]) - MAYBE == NEVER
    assert "outlived" in found["left"]
    assert found["refusal"].startswith("the sandbox here lacks")
