"""`--draft`: what the user wants a program to draft with, in the words of its `draft` clause."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from pathlib import Path

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.words import DRAFTS, MAX_DRAFTED
from qpdsl.planner.check.generate import MAX_TEXT
from qpdsl.planner.names.modules import UserDraft
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram, operators

_SETTING = re.compile(r"\s*(?:(\w+)\s*=)?\s*([^()=][^()]*?)\s*(\(.*\))?\s*", re.DOTALL)
# A path that stands without quotes, as an id does.
_BARE = re.compile(r"^\(\s*([^\"=,()\s][^\"=,()]*?)\s*(?=[,)])")
_PLAIN = re.compile(r'[A-Za-z_]\w*|"[^"\n]*"')


def user_drafts(settings: Sequence[str], opened: Set[Path] | None = None) -> dict[str, UserDraft]:
    """The drafts of `NAME=DRAFT` settings, by the names of the models that they are for; empty for all of them.

    A draft is written as in a program, but that a model's id and a path may stand without quotes. A file of texts is
    read where the user names it, and added to `opened`. Raises UsageError.
    """
    drafts: dict[str, UserDraft] = {}
    for setting in settings:
        match = _SETTING.fullmatch(setting)
        if match is None:
            raise UsageError(f"`--draft` takes DRAFT or NAME=DRAFT, not `{shorten(setting)}`")
        name = match[1] or ""
        if name in drafts:
            raise UsageError(f"`--draft` says twice what drafts for {f'`{name}`' if name else 'all models'}")
        drafts[name] = _draft(setting, match[2], match[3] or "", opened)
    return drafts


def check_drafts(program: LogicalProgram, drafts: Sequence[str]) -> None:
    """Raises UsageError for a draft, by the name of its model, that no stage of the program follows."""
    generates = [op for op in operators(program.plan) if isinstance(op, ops.Generate)]
    models = list(dict.fromkeys(op.model.name for op in generates))
    for name in drafts:
        if name and name not in models:
            raise UsageError(f"`--draft`: {unknown(name, models, f'`{program.name}` generates with no model')}")
        own = [op for op in generates if name in ("", op.model.name)]
        if all(op.draft is None for op in own):
            of = f" with `{name}`" if name else ""
            why = "`via filter`, `via contrast` and `as choice` take no drafts, and no model drafts for itself"
            raise UsageError(f"`--draft`: no stage of `{program.name}` that generates{of} can draft so", why)


def _draft(setting: str, head: str, arguments: str, opened: Set[Path] | None) -> UserDraft:
    # The parser takes long to load, and most commands get no such option.
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.grammar.source import Source

    arguments = _BARE.sub(lambda bare: f"({json.dumps(bare[1], ensure_ascii=False)}", arguments)
    word = head if _PLAIN.fullmatch(head) else json.dumps(head, ensure_ascii=False)
    try:
        file = parse_file(Source("--draft", f'program p() draft {word}{arguments} {{\n prompt "p"\n}}'))
        faults = list(file.errors)
        clause = file.programs[0].draft if file.programs else None
    except QpError as error:
        faults, clause = list(error.diagnostics), None
    if faults or clause is None:
        why = faults[0].message if faults else "it is no draft"
        raise UsageError(f"`--draft {shorten(setting)}`: {why}")
    length, branches = clause.tokens or ops.usual_length(clause.branches or 1), clause.branches or 1
    if ops.drafted(length, branches) > MAX_DRAFTED:
        raise UsageError(f"`--draft`: a draft has at most {MAX_DRAFTED} tokens with all its branches")
    if clause.method not in DRAFTS or not DRAFTS[clause.method].reads or clause.place is None:
        return UserDraft(clause)
    place = Path(clause.place).expanduser().absolute()
    files = Files(place.parent)
    try:
        texts = files.read(place.name, MAX_TEXT)
    except FileRefused as why_not:
        raise UsageError(f"`--draft`: {why_not}") from why_not
    if opened is not None:
        opened |= files.opened
    return UserDraft(clause, texts)
