"""Programs from `.qp` text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from inspect import Parameter, Signature
from keyword import iskeyword
from operator import or_
from pathlib import Path
from typing import Any, Literal

from qpdsl.api.plain_errors import in_one_frame
from qpdsl.api.program import Program
from qpdsl.errors import naming_keywords
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import Source
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import DECLARATIONS
from qpdsl.planner.plan.logical import default_values
from qpdsl.planner.values.value import thawed
from qpdsl.session.functions import Registered, by_name
from qpdsl.session.surroundings import Surroundings
from qpdsl.session.user_drafts import check_drafts, user_drafts

Functions = Iterable[Registered[..., Any] | PythonFunction]
_FIRST_WORD = re.compile(r"(?:\s|#[^\n]*)*(\w*)")


@in_one_frame
@naming_keywords
def load(
    file: str | Path,
    program: str | None = None,
    *,
    functions: Functions = (),
    allow: Iterable[str | Path] = (),
    draft: str | None = None,
) -> Program[..., Any]:
    """The program in a `.qp` file, or a shipped one by its name; `program` says which of several.

    The program may name the `functions`, and read files in its own folder and in those of `allow`. `draft` says what
    proposes tokens, as `--draft` does: "llm=zoo/counting-mini", "none". Raises UsageError and QpError.
    """
    from qpdsl.session.programs import find_source, shipped_sources

    source = find_source(str(file))
    shipped = shipped_sources().get(str(file))
    path = Path(file) if Path(file).is_file() or shipped is None else Path(str(shipped))
    return _loaded(parse_file(source), program, Files(path.parent, tuple(map(Path, allow))), functions, draft)


@in_one_frame
@naming_keywords
def parse(
    text: str,
    program: str | None = None,
    *,
    functions: Functions = (),
    folder: str | Path | None = None,
    draft: str | None = None,
) -> Program[..., Any]:
    """The program in a text; `program` says which of several. It reads files only in `folder`; `draft`: see `load`.

    Raises UsageError and QpError.

    The text may also be stages alone, as `qpdsl run -e` takes them: the names that no stage makes are the parameters,
    and `llm`, `prm` and `slm` the built-in models.
    """
    if not isinstance(text, str):
        raise TypeError(f"`qp.parse` takes the text of a program, not a {type(text).__name__}; `qp.load` takes a file")
    source, files = Source("text.qp", text), Files(None if folder is None else Path(folder))
    if not _is_pipeline(text):
        return _loaded(parse_file(source), program, files, functions, draft)
    pipeline = _loaded(parse_pipeline(source), program, files, functions, draft, composed=True)
    # The text declares none, so the program has those that it uses.
    models = tuple(model for model in pipeline.file.models if model.name in pipeline.logical.models)
    pipeline.file = replace(pipeline.file, models=models)
    return pipeline


def _loaded(
    file: ast.File,
    program: str | None,
    files: Files,
    functions: Functions,
    draft: str | None,
    *,
    composed: bool = False,
) -> Program[..., Any]:
    known = by_name(functions)
    drafts = {} if draft is None else user_drafts((draft,))
    loaded: Program[..., Any] = Program(
        file, program, Surroundings(functions=known, drafts=drafts).with_files(files), known, composed=composed
    )
    check_drafts(loaded.logical, tuple(drafts))
    loaded.__signature__ = _signature(loaded)
    return loaded


def _signature(program: Program[..., Any]) -> Signature:
    """How the program is called. Of parameters that may be left out, those behind are given by name.

    Those that are called as a keyword of Python is, such as `lambda`, are given as `**others`.
    """
    params, named = {param.name: param for param in program.params}, False
    defaults, made = default_values(params.values()), list[Parameter]()
    defaults.update((name, id) for name, id in program.logical.models.items() if id and name not in params)
    names = [name for name in program._names if not iskeyword(name)]
    for name in names:
        annotation = _annotation(params[name].declared) if name in params else str
        if name in params and (options := json.loads(params[name].schema or "{}").get("enum")):
            annotation = Literal[tuple(options)]
        default = thawed(defaults[name]) if name in defaults else Parameter.empty
        if default is Parameter.empty and made and made[-1].default is not Parameter.empty:
            named = True
        kind = Parameter.KEYWORD_ONLY if named else Parameter.POSITIONAL_OR_KEYWORD
        made.append(Parameter(name, kind, default=default, annotation=annotation))
    if "seed" not in program._names:
        made.append(Parameter("seed", Parameter.KEYWORD_ONLY, default=0, annotation=int))
    if len(names) < len(program._names):
        made.append(Parameter("others", Parameter.VAR_KEYWORD))
    return Signature(made, return_annotation=_annotation(program.logical.returns))


# Between the members of a union, but not within a list or a record.
_UNION = re.compile(r" \| (?![^\[{]*[\]}])")


def _annotation(declared: str) -> Any:
    """The type of Python for one as a program declares it."""
    if declared.endswith("?"):
        return _annotation(declared[:-1]) | None
    if len(members := _UNION.split(declared)) > 1:
        return reduce(or_, map(_annotation, members))
    if declared.startswith("["):
        return list[_annotation(declared[1 : declared.rindex("]")])]  # type: ignore[misc]
    plain = {
        "text": str,
        "choice": str,
        "int": int,
        "float": float,
        "bool": bool,
        "model": str,
        "messages": list[dict[str, Any]],
    }
    return plain.get(declared.partition("(")[0], dict[str, Any])


def _is_pipeline(text: str) -> bool:
    """Whether a text starts with a stage, spelt right or nearly so, and not with a declaration."""
    word = _FIRST_WORD.match(text)
    return word is not None and closest(word[1], (*DECLARATIONS, *STAGES)) in STAGES
