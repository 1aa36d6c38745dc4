"""Files and the files that they use: what each declares, and the names that its programs can use.

An `Environment` is what a program is checked against besides its own text: the files that it may read, and the
registered Python functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label, QpError
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.model_id import with_adapter
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import Type
from qpdsl.planner.names.model_roles import id_span, unknown_builtin
from qpdsl.planner.names.schemas import Schemas

MAX_FILES = 64
_KINDS = frozenset(("model", "schema", "program"))


@dataclass(frozen=True)
class UserDraft:
    """What the user wants to draft with, in the place of the program's clause; `texts` are those of its file."""

    clause: ast.Draft
    texts: str = field(default="", repr=False)


@dataclass(frozen=True)
class Inputs:
    """What a registered Python function asks for by the names of its parameters.

    `usual` are those of text, problem and row. `wanted` are its other parameters, each with whether it has no default;
    columns and parameters of a program go to them. `first` is the one of all its parameters that gets the text where no
    column or parameter has its name; None where none does.
    """

    usual: frozenset[str] = frozenset({"text", "row"})
    wanted: Mapping[str, bool] = field(default_factory=dict)
    first: str | None = None


@dataclass(frozen=True)
class Environment:
    """`scorers` are the names of registered Python scorers; `extractors` gives the column type of each extractor.

    `inputs` says what they ask for. `models` replaces the ids of declared models, by name, also in the files that the
    program uses, `kinds` their kinds of verifiers, and `adapters` what is put on them; with another id a model is
    without the adapter that it was declared with. `drafts` are for the `generate` stages of a model, by the name that
    the program has for it, or for all of them, by the empty name.
    """

    files: Files = field(default_factory=Files)
    scorers: frozenset[str] = frozenset()
    extractors: Mapping[str, Type] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    drafts: Mapping[str, UserDraft] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Module:
    """One file: the names that it offers to others, and those that its own programs can use.

    `missing` are the kinds (model, schema, program) of which a declaration may be missing because of an error
    elsewhere. `names` says how the names of another file begin here: `shared.`, where it is used `as shared`.
    """

    file: ast.File
    files: Files
    report: Callable[[Diagnostic], None]
    models: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str | None] = field(default_factory=dict)
    programs: dict[str, tuple[Module, ast.Program]] = field(default_factory=dict)
    schemas: Schemas = field(init=False)
    names: dict[Module, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        declared = {schema.name: schema for schema in reversed(self.file.schemas)}
        in_order = {name: declared[name] for name in reversed(declared)}
        self.schemas = Schemas(in_order, self.files, self.report, self.file.gaps)


class Modules:
    """All files that a program reaches by `use`, each read once. The faults of all of them go to `diagnostics`."""

    def __init__(self, file: ast.File, environment: Environment, diagnostics: list[Diagnostic]) -> None:
        self.diagnostics = diagnostics
        self._replaced = environment.models
        self._begins = dict[Module, str]()
        self._kinds = environment.kinds
        self._adapters = environment.adapters
        self._by_path: dict[Path, Module] = {}
        self._main_text = file.source.text
        self._folder = environment.files.folder
        self._imports: dict[Module, list[tuple[ast.Use, Module]]] = {}
        self.main = self._add(Module(file, environment.files, diagnostics.append))
        self._read_uses(self.main)
        for module, imports in self._imports.items():
            self._link(module, imports)
        for module in self._imports:
            module.schemas.complete = "schema" not in module.missing
            module.schemas.compile_all()

    def all(self) -> tuple[Module, ...]:
        return tuple(self._imports)

    def _add(self, module: Module, begin: str = "") -> Module:
        """Declares what the file holds. `begin` is how the main file begins its names, empty where they are its own."""
        self._imports[module] = []
        file = module.file
        for error in file.errors:
            # A used file may hold schemas and models alone.
            if module is not self._first() and error.code == "QP120":
                continue
            module.report(error)
        outside = [gap for gap in file.gaps if not any(_covers(program, gap.start) for program in file.programs)]
        module.missing = frozenset[str]().union(*(_possible_kinds(file, gap) for gap in outside))
        for kind, nodes in (("model", file.models), ("schema", file.schemas), ("program", file.programs)):
            no_duplicates(kind, nodes, module.report)
        for model in file.models:
            name = begin + model.name
            id = self._replaced.get(name) or with_adapter(model.id, model.adapter)
            module.models.setdefault(model.name, with_adapter(id, self._adapters.get(name)))
            module.kinds.setdefault(model.name, self._kinds.get(name, model.kind))
            if name not in self._replaced:
                fault = unknown_builtin(model.id, id_span(model, file.source))
                if fault is not None:
                    module.report(fault)
        for program in file.programs:
            module.programs.setdefault(program.name, (module, program))
        return module

    def _first(self) -> Module:
        return next(iter(self._imports))

    def _read_uses(self, start: Module) -> None:
        queue = [start]
        while queue:
            module = queue.pop(0)
            for use in module.file.uses:
                count = len(self._imports)
                used = self._read(module, use, self._begins.get(module, ""))
                if used is None:
                    module.missing = _KINDS
                    continue
                before = [other for other, file in self._imports[module] if file is used]
                if any(other.alias == use.alias for other in before):
                    message = f"`{use.path}` is used twice"
                    module.report(Diagnostic("QP208", message, use.span, "again"))
                    continue
                self._imports[module].append((use, used))
                if len(self._imports) > count:
                    queue.append(used)

    def _read(self, module: Module, use: ast.Use, begin: str) -> Module | None:
        """The file that is used. `begin` is how the main file begins the names of the one that uses it."""
        try:
            target = module.files.resolve(use.path)
            if target in self._by_path:
                return self._by_path[target]
            text = module.files.read(use.path)
        except FileRefused as why:
            module.report(Diagnostic("QP228", str(why), use.span, "cannot be read"))
            return None
        if text == self._main_text and self._folder is not None and target.parent == self._folder.resolve():
            return self.main
        if len(self._imports) == MAX_FILES:
            module.report(Diagnostic("QP228", f"a program uses at most {MAX_FILES} files", use.span, "one too many"))
            return None
        source = Source(str(PurePath(module.file.source.name).parent / use.path), text)
        allowed = tuple(folder for folder in (module.files.folder, *module.files.allowed) if folder)
        files = Files(target.parent, allowed, module.files.opened)
        try:
            file = parse_file(source)
        except QpError as error:
            self.diagnostics += [replace(diagnostic, source=source) for diagnostic in error.diagnostics]
            return None

        def report(diagnostic: Diagnostic) -> None:
            self.diagnostics.append(replace(diagnostic, source=source))

        begin += "" if use.alias is None else f"{use.alias}."
        used = self._by_path[target] = self._add(Module(file, files, report), begin)
        self._begins[used] = begin
        return used

    def _link(self, module: Module, imports: list[tuple[ast.Use, Module]]) -> None:
        """Imports the declarations of the used files. A name that is declared already must mean the same.

        Those of a file with a name of its own are called by it, so that they clash with no other.
        """
        file = module.file
        own: tuple[ast.Model | ast.Schema | ast.Program, ...] = (*file.models, *file.schemas, *file.programs)
        declared = {node.name: node.name_span for node in own}
        aliases: dict[str, ast.Use] = {}
        for use, used in imports:
            if use.alias is not None:
                self._link_named(module, use, used, aliases)
                continue
            if used is module:
                continue
            for model in used.file.models:
                id = used.models[model.name]
                if (
                    module.models.setdefault(model.name, id) != id
                    or module.kinds.setdefault(model.name, used.kinds[model.name]) != used.kinds[model.name]
                ):
                    self._clash(module, use, "model", model.name, declared)
                declared.setdefault(model.name, use.span)
            for schema in used.file.schemas:
                if schema.name in module.schemas:
                    self._clash(module, use, "schema", schema.name, declared)
                else:
                    module.schemas.used[schema.name] = used.schemas
                declared.setdefault(schema.name, use.span)
            for program in used.file.programs:
                if module.programs.setdefault(program.name, (used, program))[0] is not used:
                    self._clash(module, use, "program", program.name, declared)
                declared.setdefault(program.name, use.span)
            if not used.file.complete:
                module.missing = _KINDS

    def _link_named(self, module: Module, use: ast.Use, used: Module, aliases: dict[str, ast.Use]) -> None:
        """Imports the declarations of a file under its name here."""
        alias = use.alias or ""
        first = aliases.setdefault(alias, use)
        if first is not use:
            why = (Label(first.span, "the first"),)
            message = f"two files are used as `{alias}`"
            module.report(Diagnostic("QP208", message, use.span, "again", why, help="give one of them another name"))
            return
        module.names.setdefault(used, f"{alias}.")
        for model in used.file.models:
            module.models[f"{alias}.{model.name}"] = used.models[model.name]
            module.kinds[f"{alias}.{model.name}"] = used.kinds[model.name]
        for schema in used.file.schemas:
            module.schemas.named[f"{alias}.{schema.name}"] = used.schemas, schema.name
        for program in used.file.programs:
            module.programs[f"{alias}.{program.name}"] = used, program
        if not used.file.complete:
            module.missing = _KINDS

    def _clash(self, module: Module, use: ast.Use, kind: str, name: str, declared: Mapping[str, Span]) -> None:
        why = (Label(declared[name], "the other one"),) if name in declared else ()
        message = f"`{use.path}` declares {kind} `{name}`, which is declared already"
        module.report(Diagnostic("QP208", message, use.span, "declared in this file", why, help="rename one of them"))


def no_duplicates(
    kind: str,
    nodes: tuple[ast.Model | ast.Program | ast.Param | ast.Schema, ...],
    report: Callable[[Diagnostic], None],
) -> None:
    """Reports each node with the name of an earlier one."""
    declared: dict[str, ast.Model | ast.Program | ast.Param | ast.Schema] = {}
    for node in nodes:
        first = declared.setdefault(node.name, node)
        if first is not node:
            why = (Label(first.name_span, "the first"),)
            report(Diagnostic("QP208", f"{kind} `{node.name}` is declared twice", node.name_span, "again", why))


def _possible_kinds(file: ast.File, gap: Span) -> frozenset[str]:
    """The kinds that a faulty part may have been meant to declare: by what it is a part of, else by its first word."""
    if any(_covers(schema, gap.start) for schema in file.schemas):
        return frozenset(("schema",))
    return _KINDS & frozenset(file.source.text[gap.start : gap.end].split(None, 1)[:1]) or _KINDS


def _covers(node: ast.Program | ast.Schema, offset: int) -> bool:
    return node.span.start <= offset < node.span.end
