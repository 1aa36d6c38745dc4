"""Who may import whom, and what `import qpdsl` must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "triton", "tokenizers", "numpy", "rich"}

# What a dashboard and a report are made of.
SHOWN = (
    "executor.runtime.codec",
    "executor.runtime.events",
    "executor.runtime.figures",
    "executor.runtime.trace",
    "grammar.width",
)
# Folder → what of this package it may import besides itself, and whether torch may be imported at all.
LAYERS = {
    "grammar": (set(), False),
    "planner": ({"grammar"}, False),
    "executor/kernels": (set(), True),
    "executor/engine": ({"executor.kernels"}, True),
    "executor/decoding": (set(), True),
    "executor/reward": ({"executor.runtime.context", "executor.runtime.beginnings"}, True),
    "executor/runtime": ({"executor", "planner", "grammar"}, True),
    "tui": ({"tui", *SHOWN}, False),
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


@pytest.mark.parametrize("folder", LAYERS)
def test_layers(folder: str) -> None:
    allowed, torch = LAYERS[folder]
    allowed = {*allowed, folder.replace("/", ".")}
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        for module in imports(file):
            if module.startswith("qpdsl."):
                target = module.removeprefix("qpdsl.")
                assert any(target == name or target.startswith(name + ".") for name in allowed), f"{file}: {module}"
            heavy = HEAVY - {"rich"} if folder == "tui" else HEAVY
            assert torch or module.partition(".")[0] not in heavy, f"{file} imports {module}"


@pytest.mark.parametrize("statement", ["import qpdsl", "import qpdsl.grammar.parse, qpdsl.planner.explain, qpdsl.cli"])
def test_the_front_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
