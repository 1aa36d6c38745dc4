"""`draft`: what proposes tokens for a `generate`, as the user, the stage or the program says."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused
from qpdsl.grammar.words import DRAFTS, MOST_DRAFTED
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.names.modules import Module, UserDraft
from qpdsl.planner.plan import ops

# The largest file of texts to draft from, in bytes.
MOST_TEXT = 16 << 20


def draft_of(binder: Binder, stage: ast.Generate, model: str) -> ops.Draft | None:
    """The draft of a `generate` with this model; None where nobody says anything of it, or it is faulty.

    What the user asks for goes before the stage's clause, and that before the clause of the innermost program that has
    one. A clause of a program is for those of its stages that can draft.
    """
    asked = binder.environment.drafts
    user = asked.get(stage.model.name) or asked.get("")
    hindrance = _hindrance(stage)
    if user is not None:
        return _of_user(binder, user, model) if hindrance is None else None
    if stage.draft is not None:
        return _of_stage(binder, stage, stage.draft, model, hindrance)
    for module, program in reversed(binder.calls):
        if program.draft is not None:
            draft = _lowered(binder, program.draft, module)
            helps_itself = draft is not None and draft.model is not None and is_same_model(binder, draft.model, model)
            return None if helps_itself or hindrance is not None else draft
    return None


def is_same_model(binder: Binder, name: str, other: str) -> bool:
    """Whether two names of the plan stand for one model."""
    return name == other or (bool(binder.models.get(name)) and binder.models[name] == binder.models.get(other))


def check_program_draft(binder: Binder, program: ast.Program) -> None:
    """Reports a clause of a program that none of its stages could follow."""
    if program.draft is None:
        return
    stages = _generates(program.body)
    if not any(_hindrance(stage) is None for stage in stages) and not _calls(program.body):
        message = "no stage of this program can draft"
        help = "leave `draft` out; the tokens are the same without it"
        binder.scope.error("QP267", message, program.draft.span, "nothing would be drafted", help=help)
        return
    if all(stage.draft is not None for stage in stages):
        _lowered(binder, program.draft, binder.module)


def _of_user(binder: Binder, user: UserDraft, model: str) -> ops.Draft | None:
    """What the user asks for. A name that the file does not declare is the id of a model."""
    clause, module = user.clause, binder.calls[0][0]
    name = None if clause.model is None else clause.model.name
    if name is not None:
        id = module.models.get(name, name)
        name = binder.model_key(name, id)
        if is_same_model(binder, name, model):
            return None
    return _draft(clause, name or (None if clause.method == "ngram" else clause.place), user.texts)


def _of_stage(
    binder: Binder, stage: ast.Generate, clause: ast.Draft, model: str, hindrance: tuple[str, ast.Node] | None
) -> ops.Draft | None:
    draft = _lowered(binder, clause, binder.module)
    if draft is not None and draft.method != "none" and hindrance is not None:
        what, node = hindrance
        message = f"`draft` cannot stand beside {what}"
        help = "leave `draft` out; the tokens are the same without it"
        why = (Label(node.span, "this takes no drafts"),)
        binder.scope.error("QP267", message, clause.span, "nothing would be drafted", secondary=why, help=help)
        return None
    if draft is not None and draft.model is not None and is_same_model(binder, draft.model, model):
        message = f"`{model}` drafts for itself: checking costs as much as drafting"
        help = "name a smaller model, or write `draft early_exit`"
        binder.warn(Diagnostic("QP402", message, clause.span, "name a smaller model", help=help))
    return draft


def _lowered(binder: Binder, clause: ast.Draft, module: Module) -> ops.Draft | None:
    """The draft of a clause that stands in a file; None where it is faulty, which is reported."""
    scope = binder.scope
    if clause.method in DRAFTS and (clause.method in module.models or binder.names_model(clause.method)):
        message = f"`{clause.method}` is a way to draft, and a model of this file has that name"
        scope.error("QP267", message, clause.span, "which of them is meant?", help="rename the model")
        return None
    length, branches = _size(clause)
    if ops.drafted(length, branches) > MOST_DRAFTED:
        total = ops.drafted(length, branches)
        message = f"a draft has at most {MOST_DRAFTED} tokens with all its branches, this one {total:,}"
        scope.error("QP301", message, clause.span, "too large", help="lower `tokens` or `branches`")
        return None
    texts = ""
    if clause.method == "ngram" and clause.place is not None:
        try:
            texts = module.files.read(clause.place, MOST_TEXT)
        except FileRefused as why:
            scope.error("QP228", str(why), clause.span, "cannot be read")
            return None
    name = None
    if clause.method in ("eagle", "early_exit") and clause.place is not None:
        name = folder_of(binder, module, clause.place, clause)
        if name is None:
            return None
    if clause.model is not None:
        known = clause.model.quoted or clause.model.name in module.models or binder.names_model(clause.model.name)
        name = binder.model(clause.model, module=module)
        if not known:
            return None
    return _draft(clause, name, texts)


def folder_of(binder: Binder, module: Module, place: str, clause: ast.Node) -> str | None:
    """The folder of a head, by its path from that of the file; None where it may not be read, which is reported."""
    try:
        return str(module.files.resolve(place))
    except FileRefused as why:
        binder.scope.error("QP228", str(why), clause.span, "cannot be read")
        return None


def _draft(clause: ast.Draft, name: str | None, texts: str) -> ops.Draft:
    length, branches = _size(clause)
    return ops.Draft(clause.method, name, texts, length, branches)


def _size(clause: ast.Draft) -> tuple[int, int]:
    """Tokens one after another, and branches."""
    branches = clause.branches or 1
    return clause.tokens or ops.usual_length(branches), branches


def _hindrance(stage: ast.Generate) -> tuple[str, ast.Node] | None:
    """The clause that leaves no room for drafts, in words and as it stands."""
    if isinstance(stage.via, ast.Filter):
        return "`via filter`", stage.via
    if isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget):
        return "`as choice`", stage.target
    return None


def _generates(stages: tuple[ast.Stage, ...]) -> list[ast.Generate]:
    return [stage for stage in walk_stages(stages) if isinstance(stage, ast.Generate)]


def _calls(stages: tuple[ast.Stage, ...]) -> bool:
    return any(isinstance(stage, ast.Call) for stage in walk_stages(stages))
