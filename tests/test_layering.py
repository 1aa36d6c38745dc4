"""Who may import whom, what `import qpdsl` must not load, and what of the layout may only get better.

A contract names a part of the product and what it may import, or never imports, besides itself: for type annotations
too. Parts are import names without the leading `qpdsl.`; one stands for all below it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import networkx as nx
import pytest

import qpdsl
from tests.support.paths import ROOT

TOP = ("grammar", "planner", "executor", "qpdsl", "tui")
# What the package offers it imports when it is first used, so these files import all and nothing.
FACES = ("qpdsl", "qpdsl.__main__")

MAY_IMPORT = {
    "grammar": "",
    "zoo": "grammar",
    "planner": "grammar zoo",
    "executor.checkpoint": "executor.foreign",
    "executor.foreign": "",
    "executor.routing": "",
    "executor.requests": "",
    # Words alone: the formats of keys and values.
    "executor.kernels": "executor.checkpoint grammar.words",
    # The engine knows token ids only.
    "executor.engine": "executor.kernels executor.requests executor.routing grammar.words",
    "executor": "grammar planner",
    "tui": "grammar executor.requests executor.events runs.statistics",
    "lsp": "grammar planner zoo",
}
NEVER_IMPORTS = {
    "executor.remote": "executor.engine executor.kernels",
    "runs": "api budgets cluster serve cli lsp tui.screens tui.widgets",
    "budgets": "api cluster serve cli lsp tui",
    # The page of a run and the state that it is made of need no terminal: notebooks show them.
    "api": "cluster serve cli lsp tui.app tui.screens tui.widgets",
    "serve": "api budgets cli lsp tui runs.graders",
    # Replicas are what `serve.replicas` makes of a cluster; whatever listens knows models alone.
    "serve.http": "cluster serve.replicas",
    "cluster": "api budgets serve cli lsp tui",
}

HEAVY = {"torch", "transformers", "triton", "tokenizers", "numpy", "rich"}
# What may import these when it is imported itself.
MAY_BE_HEAVY = ("executor", "budgets", "exit_heads", "runs.statistics", "runs.estimators")
MAY_BE_HEAVY += ("session.session", "session.analysis", "session.profile", "session.timed_models")

# These only shrink. Two files with a public class of one name: such a name has two meanings. A file of fewer than
# SMALL lines that one file reads is part of that one.
MAX_NAMES_TWICE = 5
MAX_SMALL_FILES = 18
SMALL = 60
# What benchmarks give and the product never does: a GPU's run without it shows what the overlap saves.
OPTIONS_OF_BENCHMARKS = {"overlap"}


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


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(files()[module].read_text(encoding="utf-8"))


def imported(module: str) -> Iterator[str]:
    """What a module imports, in whole or in part: anywhere in it, for types alone too."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports by a relative name"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in files() else node.module or ""


@cache
def imports() -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(files())
    for module in files():
        if module not in FACES:
            graph.add_edges_from((module, name) for name in imported(module) if name in files() and name != module)
    return graph


def within(module: str, parts: str) -> bool:
    """Whether a module belongs to one of some parts."""
    return any(f"{module}.".startswith(f"qpdsl.{part}.") for part in parts.split())


def between(part: str) -> list[tuple[str, str]]:
    """What the modules of a part import of the product outside it."""
    edges = [(one, other) for one, other in imports().edges if within(one, part) and other not in FACES]
    return [(one, other) for one, other in edges if not within(other, part)]


@pytest.mark.parametrize(("part", "others"), MAY_IMPORT.items(), ids=MAY_IMPORT)
def test_a_part_imports_only(part: str, others: str) -> None:
    assert [f"{one} imports {other}" for one, other in between(part) if not within(other, others)] == []


@pytest.mark.parametrize(("part", "others"), NEVER_IMPORTS.items(), ids=NEVER_IMPORTS)
def test_a_part_never_imports(part: str, others: str) -> None:
    assert [f"{one} imports {other}" for one, other in between(part) if within(other, others)] == []


def test_the_command_line_is_on_top() -> None:
    edges = [(one, other) for one, other in imports().edges if within(other, "cli") and not within(one, "cli")]
    assert [f"{one} imports {other}" for one, other in edges] == []


def test_every_part_of_a_contract_is_there() -> None:
    named = {*MAY_BE_HEAVY}
    for part, others in (*MAY_IMPORT.items(), *NEVER_IMPORTS.items()):
        named |= {part, *others.split()}
    assert [part for part in sorted(named) if not any(within(module, part) for module in files())] == []


def test_no_circle_of_files() -> None:
    assert [sorted(group) for group in nx.strongly_connected_components(imports()) if len(group) > 1] == []


def test_the_product_imports_nothing_that_is_not_installed() -> None:
    beside = ("family", "benchmarks", "tests")
    found = [(module, name) for module in files() for name in imported(module) if name.split(".")[0] in beside]
    assert found == []


def test_what_is_heavy_stays_where_it_belongs() -> None:
    for module in files():
        if within(module, " ".join(MAY_BE_HEAVY)):
            continue
        # A dashboard draws with rich.
        heavy = HEAVY - {"rich"} if within(module, "tui") else HEAVY
        for node in tree(module).body:
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


@pytest.mark.parametrize("asked", [["--help"], ["nonsense"]])
def test_the_list_of_commands_imports_no_command(asked: list[str]) -> None:
    code = f"import sys; from qpdsl.cli import main; main({asked!r}); print([*sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "qpdsl.cli.app" in done.stderr
    assert "qpdsl.cli.commands." not in done.stderr and "qpdsl.planner" not in done.stderr


def test_a_public_class_name_stands_once() -> None:
    places = defaultdict(set)
    for module in files():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    twice = {name: sorted(modules) for name, modules in places.items() if len(modules) > 1}
    assert len(twice) <= MAX_NAMES_TWICE, twice


def test_a_small_file_that_one_file_reads_is_part_of_it() -> None:
    readers = Counter(other for _, other in imports().edges)
    small = [
        module
        for module, path in files().items()
        if readers[module] == 1 and path.name != "__init__.py" and path.read_text(encoding="utf-8").count("\n") < SMALL
    ]
    assert len(small) <= MAX_SMALL_FILES, small


def test_no_module_hides_a_name_of_the_python_face() -> None:
    """An imported module is an attribute of its package, in the place of what `qp.NAME` is."""
    public = {name for name in dir(qpdsl) if not name.startswith("_")} & {*qpdsl._HOME}
    assert public.isdisjoint(module.removeprefix("qpdsl.").partition(".")[0] for module in files())


def options_of(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The parameters of a function, and the fields of a class, that have a default, with their places."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given, first = node.args, len(node.args.args) - len(node.args.defaults)
        yield from ((own.arg, place) for place, own in enumerate(given.args[first:], first))
        named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        yield from ((own.arg, sys.maxsize) for own, default in named if default is not None)
    elif isinstance(node, ast.ClassDef):
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        for place, field in enumerate(fields):
            if field.value is not None and isinstance(field.target, ast.Name):
                yield field.target.id, place


class Uses:
    """What files define and refer to: functions, classes and their options; the texts in them."""

    def __init__(self, parsed: Iterable[ast.Module]) -> None:
        self.options: dict[str, dict[str, int]] = defaultdict(dict)
        self.calls: dict[str, set[str]] = defaultdict(set)
        self.places: Counter[str] = Counter()
        self.named, self.given, self.texts = set[str](), set[str](), set[str]()
        for node in chain.from_iterable(map(ast.walk, parsed)):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    self.named.add(name)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                        self.given.add(name)
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    self.calls[name].update(keyword.arg for keyword in node.keywords if keyword.arg)
                    self.places[name] = max(self.places[name], len(node.args))
                case ast.Constant(value=str(text)):
                    self.texts.add(text)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.options[node.name].update(options_of(node))
        self.given.update(*self.calls.values())


def test_what_benchmarks_use_the_product_uses_too() -> None:
    """No function, class or option exists that only benchmarks use: what is measured is what runs."""
    ours = Uses(map(tree, files()))
    theirs = Uses(ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "benchmarks").rglob("*.py"))
    assert theirs.named & ours.options.keys() - ours.named - ours.texts - theirs.options.keys() == set()
    given = {
        option
        for name, options in theirs.calls.items()
        for option in options & ours.options[name].keys()
        if ours.places[name] <= ours.options[name][option]
    }
    assert given - ours.given - ours.texts == OPTIONS_OF_BENCHMARKS
