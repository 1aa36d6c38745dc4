"""What is installed: every file of the packages, under one version that the changes tell of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePath

import qpdsl
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = ("qpdsl", "grammar", "planner", "executor", "tui", "programs")


def test_every_file_of_a_package_is_installed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]

    def installed(path: Path) -> bool:
        inside = path.relative_to(ROOT)
        inside = inside if inside.parts[0] == "qpdsl" else "qpdsl" / inside
        for package, names in patterns.items():
            folder = PurePath(*package.split("."))
            if inside.is_relative_to(folder) and any(inside.match(str(folder / name)) for name in names):
                return True
        return False

    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    data = [path for path in found if path.suffix != ".py" and path.parent.name != "__pycache__"]
    assert len(data) > 50
    assert [str(path.relative_to(ROOT)) for path in data if not installed(path)] == []


def test_the_changes_begin_with_this_version() -> None:
    first = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first is not None and first[1] == qpdsl.__version__


def test_each_extra_says_what_it_is_for() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]\n")[2]
    lines = text.partition("\n[")[0].splitlines()
    extras = [at for at, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    assert len(extras) == len(PROJECT["project"]["optional-dependencies"])
    assert all(at and lines[at - 1].startswith("# ") for at in extras)
