"""Files and the files that they use: what each declares, and the names that its programs can use.

An `Environment` is what a program is checked against besides its own text: the files that it may read, and the
registered Python functions.

It also knows what a model can be asked for before it is loaded: built-in models, and declared kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.diagnostic import Diagnostic, Label, QpError
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.model_id import base_of, with_adapter
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.suggest import did_you_mean, listed
from qpdsl.grammar.words import Type
from qpdsl.planner.names.schemas import CompiledSchema, Schemas
from qpdsl.planner.names.unknown import is_alias, unknown_type
from qpdsl.planner.plan.logical import LogicalProgram, operators
from qpdsl.zoo import BUILTIN, builtin

# The kinds of verifiers with a head of their own in the place of the language model's.
_WITHOUT_TEXT = ("skywork", "qwen", "outcome")


def unknown_builtin(id: str, span: Span) -> Diagnostic | None:
    """A fault where an id has the form of a built-in model's and there is none; `span` is the id with its quotes."""
    # An id that stands otherwise in the text, with braces, has a fault of its own.
    if not id.startswith("zoo/") or builtin(id) is not None or span.end - span.start != len(id) + 2:
        return None
    names, base = [model.name for model in BUILTIN], base_of(id)
    fix = did_you_mean(base, names, Span(span.start + 1, span.start + 1 + len(base)))
    notes = (f"built-in models: {', '.join(names)}",)
    message = f"there is no built-in model `{base}`"
    return Diagnostic("QP260", message, span, "not one of them", notes=notes, **fix)


def id_span(model: ast.Model, source: Source) -> Span:
    """Where the id of a declaration stands, with its quotes; empty where the text does not show the id."""
    start = source.text.find(f'"{model.id}"', model.name_span.end, model.span.end)
    return Span(0, 0) if start < 0 else Span(start, start + len(model.id) + 2)


def misused(ref: ast.ModelRef, id: str, kind: str | None, *, scores: bool) -> Iterator[Diagnostic]:
    """What speaks against a model that is asked for scores, or else for text. `kind` is its declared kind."""
    known = builtin(id)
    name = f"`{ref.name}`" if ref.name == id else f"`{ref.name}`, which is `{id}`,"
    if scores:
        if known is not None and known.kind is None:
            verifiers = listed((model.name for model in BUILTIN if model.kind is not None), last="and")
            message = f"{name} is no verifier: it writes text"
            asked = f'"{ref.name}"' if ref.quoted else ref.name
            asks = f'`score judge({asked}, "…", 1..5)` or `score prob({asked}, …)`'
            help = f"score with a reward model, as {verifiers}, or ask it: {asks}"
            yield Diagnostic("QP262", message, ref.span, "cannot score", help=help)
        elif known is not None and kind not in (None, known.kind):
            message = f"{name} is declared as a verifier of kind {kind}, and it is of kind {known.kind}"
            yield Diagnostic("QP262", message, ref.span, "another kind", help="leave `kind` out: it is known")
    elif known is not None and known.kind is not None:
        writers = listed((model.name for model in BUILTIN if model.kind is None), last="and")
        message = f"{name} is a verifier: it scores text, and cannot write any"
        yield Diagnostic("QP261", message, ref.span, "writes no text", help=f"{writers} write text")
    elif kind in _WITHOUT_TEXT:
        message = f"{name} is declared as a verifier of kind {kind}, which has no head to write text with"
        yield Diagnostic("QP261", message, ref.span, "writes no text", help="generate with another model")
    elif kind is not None:
        message = f"{name} is declared as a verifier of kind {kind}, and writes text here"
        help = "generate with another model; if this one does both, declare it a second time without `kind`"
        yield Diagnostic("QP261", message, ref.span, "a verifier", help=help, severity="warning")


def out_of_its_depth(program: LogicalProgram, syntax: ast.Program) -> Iterator[Diagnostic]:
    """The first place where a program has a built-in verifier score the work of a model that is not built in."""
    writers = [node.model.name for node in operators(program.plan) if isinstance(node, ast.Generate)]
    foreign = [id for id in map(program.models.get, writers) if id and builtin(id) is None]
    for score in walk(syntax.body):
        if foreign and isinstance(score, ast.StepScore):
            id = score.verifier.name if score.verifier.quoted else program.models.get(score.verifier.name, "")
            known = builtin(id)
            if known is not None and known.kind is not None:
                message = f"`{known.name}` was trained on two generated tasks: its scores of other work say nothing"
                why = f"`{foreign[0]}` is not built in"
                help = (
                    "score with a reward model of its own (`--model NAME=…`), or choose without one: "
                    "`vote answer`, or `best by score` of `score logprob reduce=mean`"
                )
                yield Diagnostic(
                    "QP263",
                    message,
                    score.verifier.span,
                    "scores another model's work",
                    notes=(why,),
                    help=help,
                    severity="warning",
                )
                return


MAX_FILES = 64
_KINDS = frozenset(("model", "schema", "program"))


@dataclass(frozen=True)
class UserDraft:
    """What the user wants to draft with, in the place of the program's clause; `texts` are those of its file."""

    clause: ast.DraftClause
    texts: str = field(default="", repr=False)


@dataclass(frozen=True)
class Inputs:
    """What a registered Python function asks for by the names of its parameters.

    `usual` are those of text, problem and row. `wanted` are its other parameters, each with whether it has no default;
    columns and parameters of a program go to them. `first` is the one of all its parameters that gets the text where no
    column or parameter has its name; None where none does. `parameters` are those that can be given by name, in their
    order, each with whether it has no default.
    """

    usual: frozenset[str] = frozenset({"text", "row"})
    wanted: Mapping[str, bool] = field(default_factory=dict)
    first: str | None = None
    parameters: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolForm:
    """A tool as a program sees it: the JSON Schema of its arguments, the column type of what it gives, and in words
    what it does."""

    schema: Mapping[str, Any]
    returns: Type = "unknown"
    description: str = ""


@dataclass(frozen=True)
class Environment:
    """`scorers` are the names of registered Python scorers; `extractors` gives the column type of each extractor.

    `inputs` says what they ask for. `models` replaces the ids of declared models, by name, also in the files that the
    program uses, `kinds` their kinds of verifiers, and `adapters` what is put on them; with another id a model is
    without the adapter that it was declared with. `drafts` are for the `generate` stages of a model, by the name that
    the program has for it, or for all of them, by the empty name. `answer` is what `final_answer` stands for, where it
    is not its own rules. `tools` are those that the caller hands in.
    """

    files: Files = field(default_factory=Files)
    scorers: frozenset[str] = frozenset()
    extractors: Mapping[str, Type] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    drafts: Mapping[str, UserDraft] = field(default_factory=dict)
    answer: ast.Extract | None = None
    tools: Mapping[str, ToolForm] = field(default_factory=dict)


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

    def compiled(
        self, type_: ast.TypeExpr, known: tuple[str, ...], report: Callable[[Diagnostic], None]
    ) -> CompiledSchema | None:
        """The schema of a type; None where it has an error, which is reported. `known` are types beside schemas."""
        if not isinstance(type_, ast.TypeRef):
            return self.schemas.compile_type(type_)
        if type_.name not in self.schemas and ("schema" not in self.missing or is_alias(type_.name)):
            report(unknown_type(type_, (*known, *self.schemas.names())))
        return self.schemas.get(type_.name)


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
            id = self._replaced.get(name) or model.whole_id
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
            begin = "" if use.alias is None else f"{use.alias}."
            if (used is module and not begin) or (begin and not self._named(module, use, used, aliases)):
                continue
            for model in used.file.models:
                name, id, kind = begin + model.name, used.models[model.name], used.kinds[model.name]
                same_id = module.models.setdefault(name, id) == id
                if not same_id or module.kinds.setdefault(name, kind) != kind:
                    self._clash(module, use, "model", name, declared)
                declared.setdefault(name, use.span)
            for schema in used.file.schemas:
                name = begin + schema.name
                if begin:
                    module.schemas.named[name] = used.schemas, schema.name
                elif name in module.schemas:
                    self._clash(module, use, "schema", name, declared)
                else:
                    module.schemas.used[name] = used.schemas
                declared.setdefault(name, use.span)
            for program in used.file.programs:
                name = begin + program.name
                if module.programs.setdefault(name, (used, program))[0] is not used:
                    self._clash(module, use, "program", name, declared)
                declared.setdefault(name, use.span)
            if not used.file.complete:
                module.missing = _KINDS

    def _named(self, module: Module, use: ast.Use, used: Module, aliases: dict[str, ast.Use]) -> bool:
        """Whether a file has its name here for itself; one that has not is reported."""
        first = aliases.setdefault(use.alias or "", use)
        if first is not use:
            why = (Label(first.span, "the first"),)
            message = f"two files are used as `{use.alias}`"
            module.report(Diagnostic("QP208", message, use.span, "again", why, help="give one of them another name"))
            return False
        module.names.setdefault(used, f"{use.alias}.")
        return True

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
