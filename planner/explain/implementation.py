"""What runs an operator, in a few words: the plainest implementation, then what the rules decided."""

from __future__ import annotations

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, models_of
from qpdsl.planner.rules import RULES

ROWS = "rows"
_PLAINEST: dict[type[ops.Operator], str] = {
    ops.SetContext: "template",
    ops.Score: "paged prefill",
    ops.Judge: "judge · greedy decode",
    ops.Prob: "probabilities of answers",
    ops.Tournament: "matches · probabilities of answers",
    ops.PythonScore: "python",
    ops.Passes: "sandbox",
    ops.PythonExtract: "python",
    ops.Branch: "arms",
    ops.If: "arms",
    ops.Strategy: "by the budget",
    ops.Each: "loop",
    ops.Repeat: "loop",
    ops.Search: "tree search",
}


def implementation(node: PhysicalOp, plan: PhysicalPlan) -> str:
    """Its parts are set apart by ` · `; where nothing is done but to look at rows, it is `rows`."""
    served = [model for name in models_of(node.op) if (model := plan.remote_model(name)) is not None]
    decode = node.strategy.decode.words() if isinstance(node.strategy, GenerateStrategy) else None
    plainest = decode or _PLAINEST.get(type(node.op), ROWS)
    if isinstance(node.op, ops.Judge) and node.op.reduce == "expected":
        plainest = "judge · probabilities of answers"
    if served:
        plainest = _by_server(node, plainest)
    # What a rule picked for the decode plan stands among the words of that plan.
    decisions = [word for rule in RULES for word in rule.words(node) if decode is None or word not in decode]
    words = decisions if plainest == ROWS and decisions else [plainest, *decisions]
    if served:
        words += [plan.repeats(node)]
    if any(not model.probed for model in served):
        words += ["server not probed"]
    return " · ".join(words)


def shown_implementation(node: PhysicalOp, plan: PhysicalPlan) -> str:
    """The same where there is something to tell, empty where only rows are looked at."""
    words = implementation(node, plan)
    return "" if words == ROWS else words


def _by_server(node: PhysicalOp, words: str) -> str:
    """The words for what a server does by itself, in whatever way it does it."""
    match node.strategy:
        case GenerateStrategy(decode=decode) if decode.filter == "none" and decode.whole:
            return "on a server" + (" · held to the constraint there" if decode.masked else "")
    return f"on a server · {words.removeprefix('paged prefill').removeprefix(' · ')}".removesuffix(" · ")
