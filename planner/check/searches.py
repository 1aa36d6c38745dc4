"""What of a `search` does not go together, and whether its rows may be unfinished."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.names.scope import word_span

# The one method, or the methods, that an option of `search` is for, and why it is for no other.
_SEARCH_OPTIONS = {
    "backup": (("puct",), "goes by all values below a child"),
    "prior": (("ab_mcts",), "has no choice of a prior"),
    "arms": (("ab_mcts", "ab_mcts_m"), "makes a child by each arm"),
}


def check_search(binder: Binder, stage: ast.Search, *, turns: bool) -> None:
    """What of a search does not go together, and a warning where unfinished rows may be its result."""
    scope, place = binder.scope, word_span(stage)
    if _makes_nothing(stage.body):
        message = "the block makes no new row, so there is no tree to search"
        help = "`generate` in it what the children of a row are"
        scope.error("QP252", message, place, "no `generate` in it", help=help)
    for name, (methods, why) in _SEARCH_OPTIONS.items():
        if getattr(stage, name) != ast.usual(ast.Search, name) and stage.method not in methods:
            of = " and ".join(f"`{method}`" for method in methods)
            message = f"`{name}` is an option of {of}: `{stage.method}` {why}"
            scope.error("QP150", message, place, help=f"leave `{name}` out")
    branches = sum(isinstance(inner, ast.Branch) for inner in stage.body)
    if stage.arms is not None and branches != 1 and stage.body:
        message = f"`arms` chooses among the arms of one `branch` in the block, which has {branches or 'none'}"
        help = "put `branch { { generate … } { generate … } }` into the block, or leave `arms` out"
        scope.error("QP150", message, place, help=help)
    if turns and stage.rollout != "last":
        message = "each row of this search begins a turn and is an answer, which no `rollout` carries on"
        scope.error("QP150", message, place, help="leave `rollout` out")
    elif stage.rollout == "off":
        message = "what comes out of this search may be unfinished: with `rollout=off` no row is carried on to its end"
        help = "leave `rollout` out, or put `repeat 40 until all(finished) { generate … }` behind the search"
        binder.warn(Diagnostic("QP257", message, place, "ends in steps", help=help))


def begins_turn(stages: tuple[ast.Stage, ...]) -> bool:
    """Whether a block begins a new turn before it generates, so that it can go on from finished rows."""
    for stage in walk_stages(stages):
        if isinstance(stage, ast.Generate):
            return False
        if isinstance(stage, ast.Chat | ast.Prompt | ast.Say):
            return True
    return False


def _makes_nothing(stages: tuple[ast.Stage, ...]) -> bool:
    """Whether a block that was parsed as a whole generates nothing, not even by a call."""
    return bool(stages) and not any(isinstance(stage, ast.Generate | ast.Call) for stage in walk_stages(stages))
