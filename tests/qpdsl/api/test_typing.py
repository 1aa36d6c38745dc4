"""Callers' code, and the Python face itself, are clean under mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.unshipped
FILES = [
    *(f"tests/support/api/{name}.py" for name in ("callers", "shipped", "mistakes")),
    "tests/qpdsl/session/test_functions.py",
]
# What the engine is built on says nothing of the face, and takes minutes to read.
CONFIG = """
[mypy]
strict = true
[mypy-mcp.*,torch.*,transformers.*,tokenizers.*,numpy.*,networkx.*,safetensors.*,pyarrow.*,datasets.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-qpdsl.executor.*,qpdsl.planner.*,qpdsl.grammar.*,qpdsl.zoo.*,qpdsl.cli.*,qpdsl.session.session,qpdsl.exit_heads.*,qpdsl.tui.*]
ignore_errors = true
[mypy-qpdsl.runs.*,qpdsl.budgets.*]
ignore_errors = true
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is as it is installed: the stages are in it, not beside it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "qpdsl").mkdir()
    for entry in [
        *(ROOT / "qpdsl").iterdir(),
        *(ROOT / name for name in ("grammar", "planner", "executor", "tui", "programs")),
    ]:
        (folder / "qpdsl" / entry.name).symlink_to(entry)
    (folder / "mypy.ini").write_text(CONFIG)
    return folder


def test_callers_and_face(site: Path) -> None:
    callers = [Path(file).name for file in FILES]
    for file, name in zip(FILES, callers, strict=True):
        (site / name).write_text((ROOT / file).read_text("utf-8"), "utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini"]
    for arguments in ([*command, *callers], [*command, "-p", "qpdsl.api"]):
        done = subprocess.run(arguments, cwd=site, capture_output=True, text=True, env={"MYPYPATH": str(site)})
        assert done.returncode == 0, done.stdout + done.stderr
