"""Who may import whom, how full a folder may be, and what `import qpdsl` must not load.

`LAYERS` names every folder of product code, from the ground up, and the folders it may import besides itself. A folder
stands below all that import it, so the table is in order.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.support.paths import ROOT

TOP = ("grammar", "planner", "executor", "qpdsl", "tui")
# What the package offers it imports when it is first used, so these files import all and nothing.
FACES = ("qpdsl", "qpdsl.__main__")
HEAVY = {"torch", "transformers", "triton", "tokenizers", "numpy", "rich"}
# Folders whose files may import what is heavy when they are imported themselves.
HEAVY_FOLDERS = ("executor", "qpdsl/budgets", "qpdsl/calibration", "qpdsl/family", "qpdsl/measures/statistics")
HEAVY_MODULES = ("qpdsl.session", "qpdsl.planning.analysis", "qpdsl.planning.profile")
MOST_FILES = 12

LAYERS: dict[str, str] = {
    "grammar": "",
    "grammar/ast": "grammar",
    "grammar/literals": "grammar grammar/ast",
    "grammar/builders": "grammar grammar/ast grammar/literals",
    "grammar/parse": "grammar grammar/ast grammar/literals grammar/builders",
    "grammar/format": "grammar grammar/ast grammar/literals grammar/parse",
    "qpdsl/zoo": "grammar",
    "qpdsl/plots": "",
    "planner": "",
    "planner/values": "grammar",
    "planner/budget": "",
    "planner/plan": "grammar grammar/ast grammar/literals planner/values planner/budget",
    "planner/names": "grammar grammar/ast grammar/literals grammar/parse grammar/format planner/plan planner/values "
    "qpdsl/zoo",
    "planner/ways": "grammar grammar/ast planner/budget planner/plan planner/names",
    "planner/check": "grammar grammar/ast grammar/literals grammar/format planner/plan planner/values planner/names "
    "planner/ways",
    "planner/rules/decode": "planner/plan",
    "planner/rules/remote": "grammar/ast planner/plan planner/values",
    "planner/rules": "grammar/ast grammar/literals planner/plan planner/values planner/rules/decode "
    "planner/rules/remote",
    "planner/cost": "grammar grammar/ast planner/plan planner/values",
    "planner/capacity": "",
    "planner/optimize": "grammar/ast planner/budget planner/ways planner/plan planner/values planner/rules "
    "planner/cost",
    "planner/explain": "grammar grammar/ast grammar/format planner/budget planner/plan planner/values planner/rules "
    "planner/cost "
    "planner/optimize "
    "planner/capacity",
    "executor": "",
    "executor/requests": "",
    "executor/sample_memory": "executor/requests",
    "executor/routing": "",
    "executor/checkpoint": "",
    "executor/kernels/data": "",
    "executor/kernels/plain": "executor/kernels/data",
    "executor/kernels/llvm/jit": "executor/checkpoint",
    "executor/kernels/llvm/matmul": "executor/kernels/data executor/kernels/llvm/jit",
    "executor/kernels/llvm": "executor/kernels/data executor/kernels/plain executor/kernels/llvm/*",
    "executor/kernels/triton": "executor/kernels/data executor/kernels/plain",
    "executor/kernels/triton/attention": "executor/kernels/data executor/kernels/plain executor/kernels/triton",
    "executor/kernels/triton/heads": "executor/kernels/data executor/kernels/plain executor/kernels/triton",
    "executor/kernels/triton/layers": "executor/kernels/data executor/kernels/triton executor/kernels/triton/attention",
    "executor/kernels": "executor/kernels/*",
    "executor/engine/memory": "executor/requests executor/kernels/data",
    "executor/engine/batch": "executor/requests executor/kernels* executor/engine/memory",
    "executor/engine/rowwise": "executor/kernels executor/kernels/data",
    "executor/engine/model": "executor/requests executor/kernels* executor/engine/memory executor/engine/batch "
    "executor/engine/rowwise",
    "executor/engine/readings": "executor/requests executor/engine/batch",
    "executor/engine/step": "executor/requests executor/kernels* executor/engine/memory executor/engine/batch "
    "executor/engine/model executor/engine/readings executor/routing",
    "executor/engine/draft": "executor/requests executor/kernels* executor/engine/memory executor/engine/batch "
    "executor/engine/model executor/engine/step",
    "executor/engine/exit": "executor/requests executor/kernels* executor/engine/memory executor/engine/batch "
    "executor/engine/model executor/engine/step executor/routing",
    "executor/engine": "executor/requests executor/engine/*",
    "executor/text": "grammar/literals",
    "executor/verifiers": "grammar executor/text executor/checkpoint executor/engine/model",
    "executor/models": "grammar executor/requests executor/text executor/checkpoint executor/verifiers "
    "executor/kernels executor/kernels/data executor/engine/*",
    "executor/remote/server": "grammar executor/requests executor/checkpoint",
    "executor/remote/dialects": "grammar executor/requests executor/checkpoint executor/text executor/remote/server",
    "executor/remote/scoring": "executor/requests executor/remote/server",
    "executor/remote/probe": "grammar executor/requests executor/checkpoint executor/models executor/remote/server "
    "executor/remote/dialects executor/remote/scoring",
    "executor/remote": "grammar executor/requests executor/checkpoint executor/text executor/models executor/verifiers "
    "executor/remote/*",
    "executor/events": "executor/engine",
    "executor/runtime/instance": "grammar/ast planner/plan planner/values executor/requests executor/text "
    "executor/verifiers "
    "executor/models executor/events",
    "executor/runtime/operators": "grammar grammar/ast grammar/literals planner/plan planner/values executor/requests "
    "executor/text "
    "executor/verifiers "
    "executor/runtime/instance",
    "executor/runtime/scoring": "grammar grammar/ast planner/values planner/plan executor/requests executor/text "
    "executor/models "
    "executor/verifiers executor/runtime/instance executor/runtime/operators",
    "executor/runtime/generate": "grammar/literals planner/plan planner/values executor/requests executor/text "
    "executor/models "
    "executor/events executor/engine/step executor/runtime/instance executor/runtime/operators",
    "executor/runtime/tree_search": "planner/plan planner/values executor/verifiers executor/runtime/instance",
    "executor/runtime": "planner/plan planner/values executor/requests executor/events executor/sample_memory "
    "executor/runtime/*",
    "executor/measure": "planner/cost planner/capacity executor/checkpoint executor/requests executor/text "
    "executor/models executor/events executor/engine executor/engine/*",
    "qpdsl/remote": "grammar grammar/ast planner/plan executor/checkpoint executor/requests executor/models "
    "executor/remote executor/remote/* executor/runtime",
    "tui/state": "executor/requests executor/events",
    "tui/widgets": "grammar tui/state",
    "tui/screens": "grammar tui/state tui/widgets",
    "tui/report": "grammar executor/events tui/state tui/widgets tui/screens",
    "tui": "tui/*",
    "qpdsl": "grammar* planner/plan planner/values planner/ways executor* qpdsl/zoo qpdsl/remote",
    "qpdsl/sources": "grammar* planner/plan planner/values planner/names planner/check executor/runtime/instance qpdsl",
    "qpdsl/planning": "grammar grammar/ast grammar/format planner* executor/checkpoint executor/remote/server "
    "executor/remote/probe executor/engine/memory "
    "executor/models executor/measure executor/engine/step executor/requests executor/routing qpdsl qpdsl/zoo",
    "qpdsl/inputs/formats": "grammar qpdsl",
    "qpdsl/inputs/mapping": "grammar grammar/literals executor/runtime/operators qpdsl qpdsl/inputs/formats",
    "qpdsl/inputs/known": "qpdsl qpdsl/inputs/mapping",
    "qpdsl/inputs": "grammar grammar/ast grammar/parse planner/plan planner/values qpdsl qpdsl/sources qpdsl/inputs/*",
    "qpdsl/measures/statistics": "",
    "qpdsl/measures": "grammar planner/plan planner/values qpdsl qpdsl/inputs qpdsl/measures/statistics",
    "qpdsl/measures/graders": "planner/plan planner/values executor/runtime/instance executor/runtime/operators "
    "executor/runtime/scoring qpdsl qpdsl/inputs qpdsl/measures",
    "qpdsl/dataset": "grammar planner/plan planner/values planner/cost planner/explain executor/checkpoint "
    "executor/requests executor/events executor/runtime "
    "executor/runtime/instance qpdsl qpdsl/inputs qpdsl/measures",
    "qpdsl/run_store": "grammar planner/plan planner/values planner/cost planner/explain executor/runtime/instance "
    "qpdsl "
    "qpdsl/planning qpdsl/inputs qpdsl/measures qpdsl/dataset",
    "qpdsl/budgets": "grammar grammar/ast planner/budget planner/plan planner/values planner/ways planner/cost qpdsl "
    "qpdsl/inputs qpdsl/measures qpdsl/measures/statistics qpdsl/dataset qpdsl/run_store",
    "qpdsl/evaluation": "grammar planner/budget planner/plan planner/values planner/ways qpdsl qpdsl/sources "
    "qpdsl/planning qpdsl/inputs qpdsl/measures qpdsl/measures/statistics qpdsl/dataset qpdsl/run_store qpdsl/plots",
    "qpdsl/cluster/replica": "grammar executor/requests executor/events executor/models executor/runtime/instance "
    "qpdsl qpdsl/sources qpdsl/inputs qpdsl/measures qpdsl/measures/graders "
    "qpdsl/dataset qpdsl/run_store",
    "qpdsl/cluster/backends": "executor/engine/memory qpdsl qpdsl/cluster/replica",
    "qpdsl/cluster": "executor/requests executor/events qpdsl qpdsl/inputs qpdsl/measures qpdsl/dataset "
    "qpdsl/run_store "
    "qpdsl/cluster/*",
    "qpdsl/comparison": "planner/values qpdsl qpdsl/measures/statistics qpdsl/run_store",
    "qpdsl/comparison/page": "grammar planner/values tui/report qpdsl qpdsl/measures/statistics qpdsl/plots "
    "qpdsl/comparison",
    "qpdsl/calibration": "executor/checkpoint executor/requests executor/models executor/engine/model qpdsl",
    "qpdsl/family/tasks": "",
    "qpdsl/family/training": "executor/engine/draft executor/models qpdsl/family/tasks",
    "qpdsl/family/measure": "planner/plan planner/values planner/optimize qpdsl qpdsl/sources qpdsl/inputs "
    "qpdsl/dataset "
    "qpdsl/family/*",
    "qpdsl/family": "qpdsl/family/*",
    "qpdsl/api": "grammar* planner* executor* qpdsl qpdsl/sources qpdsl/planning qpdsl/inputs qpdsl/measures "
    "qpdsl/measures/graders qpdsl/measures/statistics qpdsl/dataset qpdsl/run_store qpdsl/budgets qpdsl/plots "
    "qpdsl/evaluation",
    "qpdsl/api/compose": "grammar* planner/plan planner/values executor/runtime/instance qpdsl qpdsl/api qpdsl/sources",
    "qpdsl/lsp": "grammar* planner/plan planner/values planner/names planner/check qpdsl qpdsl/zoo",
    "qpdsl/serve": "grammar* planner* executor* qpdsl qpdsl/sources qpdsl/planning qpdsl/run_store",
    "qpdsl/serve/http": "executor/requests executor/events qpdsl qpdsl/serve",
    "qpdsl/serve/exposed": "executor/requests executor/models executor/text executor/runtime/instance executor/remote "
    "qpdsl/serve",
    "qpdsl/cli": "grammar* planner/rules planner/optimize executor/checkpoint executor/requests executor/events qpdsl "
    "qpdsl/zoo qpdsl/sources qpdsl/run_store",
    "qpdsl/cli/options": "grammar grammar/ast planner/budget planner/optimize planner/plan planner/values "
    "executor/checkpoint executor/engine/memory executor/remote executor/remote/server "
    "qpdsl qpdsl/budgets qpdsl/cluster qpdsl/sources "
    "qpdsl/planning qpdsl/inputs qpdsl/inputs/known qpdsl/measures qpdsl/measures/graders qpdsl/run_store qpdsl/cli",
    "qpdsl/cli/runs": "grammar planner/plan planner/values planner/explain executor* tui tui/widgets qpdsl/zoo "
    "qpdsl qpdsl/sources qpdsl/planning qpdsl/inputs qpdsl/measures qpdsl/measures/graders qpdsl/cli/options "
    "qpdsl/dataset qpdsl/run_store qpdsl/cluster qpdsl/cluster/replica qpdsl/cli "
    "qpdsl/remote",
    "qpdsl/cli/sweeps": "grammar planner/budget planner/plan planner/values executor/requests executor/events qpdsl "
    "qpdsl/sources qpdsl/planning qpdsl/inputs qpdsl/measures qpdsl/measures/graders qpdsl/dataset qpdsl/run_store "
    "qpdsl/plots planner/ways qpdsl/budgets qpdsl/evaluation qpdsl/cluster/replica qpdsl/cli qpdsl/cli/options "
    "qpdsl/cli/runs",
    "qpdsl/cli/commands/viewers": "executor/events tui* qpdsl qpdsl/run_store qpdsl/comparison* qpdsl/cli "
    "qpdsl/cli/runs",
    "qpdsl/cli/commands/profiling": "grammar planner* executor/checkpoint qpdsl qpdsl/zoo qpdsl/sources qpdsl/planning "
    "qpdsl/cli",
    "qpdsl/cli/commands/servers": "grammar planner/plan executor/checkpoint executor/engine/memory executor/events "
    "executor/remote executor/remote/* qpdsl qpdsl/lsp qpdsl/serve* "
    "qpdsl/sources qpdsl/planning qpdsl/cli qpdsl/cli/options qpdsl/cli/runs",
    "qpdsl/cli/commands/records": "planner/values planner/explain qpdsl qpdsl/dataset qpdsl/measures/statistics "
    "qpdsl/run_store qpdsl/comparison qpdsl/cli",
    "qpdsl/cli/commands": "grammar* planner* executor* qpdsl qpdsl/*",
}

# Words that name more than one file, and the one thing that each of them means. A second meaning needs another word.
SHARED_WORDS = {
    "analyze": "what runs came to",
    "app": "a whole application, and what its parts share",
    "blocks": "stages that hold stages",
    "clauses": "clauses of stages",
    "completion": "proposals for what is being typed",
    "context": "the conversation or prompt of a row",
    "decided_vote": "votes that no sample can change any more",
    "declarations": "models, schemas and programs of a file",
    "device": "what a device was measured to do",
    "diagnostics": "what is wrong with a program, shown",
    "engine": "what serves requests",
    "errors": "exceptions, and how failures are told",
    "expressions": "expressions of the language",
    "functions": "Python functions that programs call",
    "generate": "the `generate` stage",
    "options": "options of stages",
    "plan": "the physical plan, shown",
    "profile": "measuring a device",
    "program": "one program",
    "programs": "programs that a command line names",
    "rows": "rows of the input",
    "run": "one run of a program",
    "sample": "drawing a token from logits",
    "schemas": "schemas of records",
    "score": "the `score` stage",
    "search": "the search of one row, shown",
    "stages": "stages of a program",
    "types": "types of values",
}


@cache
def files() -> dict[str, Path]:
    """Every product file by its dotted import name."""
    found = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            if top != "qpdsl":
                parts.insert(0, "qpdsl")
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def folder_of(path: Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


def imported(module: str) -> Iterator[str]:
    """The product modules that a module imports: anywhere in it, for types alone too."""
    if module in FACES:
        return
    for node in ast.walk(ast.parse(files()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files())
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports by a relative name"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                target = name if name in files() else node.module
                if target in files() and target != module:
                    yield target


@cache
def imports() -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(files())
    graph.add_edges_from((module, target) for module in files() for target in imported(module))
    return graph


def allowed(folder: str) -> set[str]:
    """The folders that a row of the table names; `x*` is `x` with all under it, `x/*` all under it."""
    named = {folder}
    for word in LAYERS[folder].split():
        top = word.rstrip("/*")
        below = {name for name in LAYERS if name.startswith(f"{top}/")} if word != top else set()
        named |= below if word.endswith("/*") else below | {top}
    return named


def test_every_folder_has_its_place() -> None:
    assert {folder_of(path) for path in files().values()} == set(LAYERS)


@pytest.mark.parametrize("folder", LAYERS)
def test_layers(folder: str) -> None:
    for module, path in files().items():
        if folder_of(path) == folder:
            for target in imports().successors(module):
                if target not in FACES:
                    assert folder_of(files()[target]) in allowed(folder), f"{module} imports {target}"


def test_the_table_runs_from_the_ground_up() -> None:
    order = list(LAYERS)
    later = {folder: {name for name in allowed(folder) if order.index(name) > order.index(folder)} for folder in LAYERS}
    assert {folder: names for folder, names in later.items() if names} == {}


def test_no_circle_of_files() -> None:
    assert [sorted(group) for group in nx.strongly_connected_components(imports()) if len(group) > 1] == []


def test_no_circle_of_folders() -> None:
    folders = nx.DiGraph(
        (folder_of(files()[module]), folder_of(files()[target]))
        for module, target in imports().edges
        if target not in FACES and folder_of(files()[module]) != folder_of(files()[target])
    )
    assert [sorted(group) for group in nx.strongly_connected_components(folders) if len(group) > 1] == []


def test_folders_are_not_crowded() -> None:
    count = Counter(folder_of(path) for path in files().values() if path.name != "__init__.py")
    assert {folder: most for folder, most in count.items() if most > MOST_FILES} == {}


def test_a_word_names_one_thing() -> None:
    count = Counter(path.stem for path in files().values() if path.name != "__init__.py")
    assert {stem for stem, number in count.items() if number > 1} == set(SHARED_WORDS)


def test_what_is_heavy_stays_where_it_belongs() -> None:
    for module, path in files().items():
        folder = folder_of(path)
        if module in HEAVY_MODULES or (folder.startswith(HEAVY_FOLDERS) and folder != "qpdsl/family/tasks"):
            continue
        # A dashboard draws with rich.
        heavy = HEAVY - {"rich"} if folder.startswith("tui") else HEAVY
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] not in heavy, f"{module} imports {name}"


@pytest.mark.parametrize(
    "statement", ["import qpdsl", "import qpdsl.grammar.parse.parser, qpdsl.planner.explain.plan, qpdsl.cli"]
)
def test_the_front_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_and_completion_load_no_parser() -> None:
    """The shell asks for both, and the parser takes longer to load than they take to answer."""
    commands = ", ".join(module for module in files() if module.startswith("qpdsl.cli.commands."))
    code = f"import sys; import {commands}; print('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
