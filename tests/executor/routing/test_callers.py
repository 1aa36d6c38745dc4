"""What is measured is what runs: no policy, table or option of one exists that benchmarks and tests alone call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FOLDER = ROOT / "executor" / "routing"
PRODUCT = [ROOT / name for name in ("qpdsl", "executor", "planner", "tui")]


def trees(folder: Path) -> Iterator[ast.Module]:
    for file in sorted(folder.rglob("*.py")):
        yield ast.parse(file.read_text(encoding="utf-8"))


def outside() -> Iterator[ast.Module]:
    """The product's files but those of the folder."""
    for folder in PRODUCT:
        for file in sorted(folder.rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if FOLDER not in file.parents and ("routing" in text or "Router" in text):
                yield ast.parse(text)


def names_in(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def defined() -> dict[str, ast.AST]:
    """What the folder's files define, by name; of constants the values."""
    found: dict[str, ast.AST] = {}
    for tree in trees(FOLDER):
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                found |= {target: node.value for name in node.targets for target in names_in(name)}
    return found


def test_every_policy_is_reached_from_the_product() -> None:
    known = defined()
    reached = {
        alias.name
        for tree in outside()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qpdsl.executor.routing.")
        for alias in node.names
    }
    assert {"LinUCB", "RouteTable", "drifting"} <= reached
    waiting = sorted(reached)
    while waiting:
        more = names_in(known[waiting.pop()]) & known.keys() - reached
        reached |= more
        waiting += more
    assert known.keys() == reached


def test_every_option_is_given_by_the_product() -> None:
    given = {
        keyword.arg
        for tree in outside()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    options = {
        argument.arg
        for node in defined().values()
        for method in ast.walk(node)
        if isinstance(method, ast.FunctionDef)
        for argument in method.args.kwonlyargs
    }
    assert {"alpha", "beta", "seed"} <= options <= given


def test_benchmarks_have_no_policies_of_their_own() -> None:
    for tree in trees(ROOT / "benchmarks"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
                assert not {"choose", "learn"} <= methods, node.name
