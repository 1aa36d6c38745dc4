"""A physical plan as text and as data: what will run, and how many rows are expected. Estimates only.

The last operator is the root, at the top. Below a `repeat` are the operators of its body, last first, and below a
`branch` its arms, each with its operators below it. The line `from …` after them says which operator's rows they start
with.

Operators in the words of the language.

What runs an operator, in a few words: the plainest implementation, then what the rules decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr, format_stage
from qpdsl.grammar.model_id import adapter_of, is_remote
from qpdsl.grammar.printable import printable, shorten
from qpdsl.grammar.words import FAILURE
from qpdsl.planner.explain.quantities import count, per_cent, plural, seconds
from qpdsl.planner.explain.tree_table import GAP, folded, laid_out
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import policy_lines
from qpdsl.planner.plan.physical import (
    BudgetStrategy,
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    everything,
    models_of,
    repeats_of,
)
from qpdsl.planner.rules import RULES

_TABLE_WIDTH = 60
Values = Mapping[str, ast.Expr]


def describe(op: ops.Operator, values: Values) -> str:
    """One operator as a stage, parameters shown as their values where `values` has one."""
    match op:
        case ops.Keep(count=ast.Literal(value=1), by=by, per=None, like=None):
            return f"best by {format_expr(by, values)}"
        case ops.Keep(like=str()) | ops.StepScore(raw=True):
            return f"{format_stage(op, values)} as search-and-learn"
        case ops.Passes(why=True, into=ast.Name(id=name)):
            return (
                f"extract {name} = {format_stage(replace(op, into=None), values).replace('score passes', FAILURE, 1)}"
            )
        case ops.BudgetedArms():
            return "strategy"
        case ops.Branch(arms=arms):
            return f"branch of {len(arms)}"
        case ops.Repeat():
            return format_stage(op, values).replace("repeat ", "repeat ≤", 1)
        case ops.Return(parse=True):
            return f"{format_stage(op, values)} as a record"
    return format_stage(op, values)


def in_words(op: ops.Operator) -> str:
    """One operator as a stage, for any values of the parameters, short enough for a table."""
    return shorten(describe(op, {}), _TABLE_WIDTH)


ROWS = "rows"
_PLAINEST: dict[type[ops.Operator], str] = {
    ops.Prompt: "template",
    ops.Chat: "template",
    ops.StepScore: "paged prefill",
    ops.Judge: "judge · greedy decode",
    ops.Prob: "probabilities of answers",
    ops.Likelihood: "paged prefill",
    **dict.fromkeys((ops.Tournament, ops.KeepTournament, ops.RoundRobin), "matches · probabilities of answers"),
    ops.PythonScore: "python",
    ops.Passes: "sandbox",
    ops.PythonExtract: "python",
    ops.Tool: "tool",
    ops.Branch: "arms",
    ops.If: "arms",
    ops.Each: "loop",
    ops.Repeat: "loop",
    ops.Search: "tree search",
}


def implementation(node: PhysicalOp, plan: PhysicalPlan) -> str:
    """Its parts are set apart by ` · `; where nothing is done but to look at rows, it is `rows`."""
    served = [model for name in models_of(node.op) if (model := plan.remote_model(name)) is not None]
    decode = node.strategy.decode.words() if isinstance(node.strategy, GenerateStrategy) else None
    plainest = decode or _PLAINEST.get(type(node.op), ROWS)
    if isinstance(node.strategy, BudgetStrategy) and node.strategy.policy is not None:
        plainest = f"by the budget, {len(node.arms)} of {len(node.strategy.policy.ways)} ways"
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


Line = tuple[str, PhysicalOp | None]
Cells = tuple[str, str, str]
_WIDEST = 100
# From this indentation on, in characters, the stages of a chain stand under each other.
_DEEPEST = 240


def explain(plan: PhysicalPlan, width: int | None = None) -> str:
    """The plan as a tree, a summary first, without a trailing newline; lines take at most `width` terminal cells."""
    lines = [line for entry in laid_out(table(plan, costed=True), width=width, right=(1,)) for line in entry]
    ends = [line for note in notes(plan) if note for part in note.split("\n") for line in folded(part, width)]
    return "\n".join([*folded(summary(plan), width), *lines, *ends])


def table(plan: PhysicalPlan, *, costed: bool = False) -> list[Cells]:
    """The lines of the tree: an operator with its lead, the rows it makes, and how it runs, `costed` at what cost."""
    return [
        (text, _rows(op.rows) if op else "", " · ".join(_words(op, plan, costed)) if op else "")
        for text, op in tree(plan)
    ]


def _words(op: PhysicalOp, plan: PhysicalPlan, costed: bool) -> Iterator[str]:
    if words := shown_implementation(op, plan):
        yield words
    if costed and op.cost is not None:
        yield "est not measured" if op.cost.seconds is None else f"est {seconds(op.cost.seconds)}"


def tree(plan: PhysicalPlan) -> list[Line]:
    """The lines of the tree with their operators, None for the head of an arm."""
    return list(_tree(plan.ops, _defaults(plan), "", ""))


def notes(plan: PhysicalPlan) -> tuple[str, str, str, str]:
    """What stands under the tree; of the first, about a budget, and the third, about how the plan runs, may be none."""
    running = []
    if plan.in_flight is not None:
        at_work = f"one more while fewer than {plan.floor} sequences are at work"
        running.append(f"problems: ≤{plan.in_flight} at once, {at_work}")
    if plan.kv_type is not None:
        running.append(f"keys and values: {plan.kv_type}")
    if (limits := plan.limits) is not None:
        running.append(f"steps: ≤{limits.sequences} sequences, ≤{limits.tokens:,} tokens, {limits.source}")
    if plan.kv_shares:
        shares = ", ".join(f"{name} ≤{per_cent(share)}" for name, share in plan.kv_shares.items())
        running.append(f"KV memory: {shares}")
    running += [f"operator {id}: {measured}" for id, measured in plan.ways.items()]
    long = [id for id in plan.models.values() if adapter_of(id) is not None or is_remote(id)]
    running += [f"{name}: {id}" for name, id in plan.models.items() if name != id and id in long]
    columns = f"columns: {', '.join(plan.ops[-1].columns)}"
    budget = "" if plan.policy is None else "\n".join(policy_lines(plan.policy))
    return printable(budget), printable(columns), printable("; ".join(running)), printable(_footnote(plan))


def explain_json(plan: PhysicalPlan) -> dict[str, Any]:
    """The same as data, with stable keys; operators in running order.

    Of a parameter, `default` is what the program declares and `value` what the estimates go by. `samples` and `scores`
    are the most of each over all rounds, None where that is not known.
    """
    return {
        "program": plan.name,
        "source": plan.source.name,
        "equivalence": plan.equivalence,
        "repeats": repeats_of(plan),
        "within": _within(plan),
        "prefer": plan.prefer,
        "deadline": plan.deadline,
        "returns": plan.returns,
        "models": dict(plan.models),
        "rules": list(plan.rules),
        "chosen_by_cost": plan.chosen,
        "reads": None if plan.reads is None else list(plan.reads),
        "in_flight": plan.in_flight,
        "floor": plan.floor,
        "prompted": list(plan.prompted),
        "kv_type": plan.kv_type,
        "limits": None if plan.limits is None else asdict(plan.limits),
        "kv_shares": dict(plan.kv_shares),
        "measured_ways": dict(plan.ways),
        "policy": None if plan.policy is None else plan.policy.to_json(),
        **{word: _whole(total) for word, total in _totals(plan).items()},
        "parameters": [
            {
                "name": param.name,
                "type": param.declared,
                "default": _shown(plan.declared.get(param.name)),
                "value": _shown(param.default),
            }
            for param in plan.params
        ],
        "operators": _operators_json(plan.ops, plan, _defaults(plan)),
    }


def _heads(node: PhysicalOp) -> list[str]:
    """What the arms of an operator are called."""
    if isinstance(node.op, ops.If):
        return ["where it holds", "else"][: len(node.arms)]
    if isinstance(node.op, ops.BudgetedArms):
        return [way.name for way in node.op.ways]
    return [f"arm {number}" for number in range(1, len(node.arms) + 1)]


def _tree(chain: tuple[PhysicalOp, ...], values: Values, first: str, rest: str) -> Iterator[Line]:
    """Lines with their operators, None for the head of an arm. `first` leads the first line, `rest` those below it."""
    word = ""
    for number, node in enumerate(reversed(chain), 1):
        yield f"{first}{word}{shorten(describe(node.op, values), _WIDEST)}", node
        below: list[tuple[str, tuple[PhysicalOp, ...]]] = [("", (op,)) for op in reversed(node.body)]
        below += zip(_heads(node), node.arms, strict=True)
        for index, (head, inner) in enumerate(below):
            closes = index == len(below) - 1 and number == len(chain)
            lead, under = ("└ ", "  ") if closes else ("├ ", "│ ")
            if head:
                yield f"{rest}{lead}{head}{'' if inner else ': the rows as they are'}", None
                lead, under = f"{under}└ ", f"{under}  "
            if inner:
                yield from _tree(inner, values, rest + lead, rest + under)
        # A program of thousands of stages would be indented more than it says.
        deeper = rest if len(rest) >= _DEEPEST else f"{rest}  "
        first, rest, word = f"{rest}└ ", deeper, "from " if below else ""


def summary(plan: PhysicalPlan) -> str:
    """The first line: the program, what it takes at the most, how many rules made the plan, what it may change."""
    work = []
    for word, total in _totals(plan).items():
        if total != 0:
            noun = word[:-1] if total == 1 else word
            work.append(f"≤{count(total)} {noun}" if total is not None else f"{word} unknown")
    name = plan.source.name if plan.source.name.endswith(".qp") else plan.name
    work += decided(plan)
    permits = [permitted(plan), *kept(plan)]
    permits += [f"prefer latency={plan.prefer:g}"] if plan.prefer is not None else []
    permits += [f"within deadline({plan.deadline:g}s)"] if plan.deadline is not None else []
    return printable(GAP.join([name.rsplit("/", 1)[-1], *work, *permits, "estimates only"]))


def permitted(plan: PhysicalPlan) -> str:
    """What the program permits its plan to change, as it says so: `within loss(0.02)`, `lossy: via filter`."""
    if plan.within.level != "lossy":
        return f"within {_within(plan)}"
    vias = [op.op.via for op in everything(plan.ops) if isinstance(op.op, ops.Generate)]
    names = dict.fromkeys(via.word for via in vias if isinstance(via, ops.Filter | ops.Amortized))
    return f"lossy: {', '.join(f'via {name}' for name in names)}"


def _within(plan: PhysicalPlan) -> str:
    """The level that the program permits. Where servers are asked, exact is as much as comes again of their samples."""
    return plan.within.repeats if plan.within.level == "exact" and plan.has_remote() else str(plan.within)


def kept(plan: PhysicalPlan) -> list[str]:
    """What comes again of samples that servers draw, for the first line: `replayable` or `recorded`."""
    repeats = repeats_of(plan)
    return [] if repeats == "exact" or permitted(plan) == f"within {repeats}" else [repeats]


def decided(plan: PhysicalPlan) -> list[str]:
    """What made the plan of the naive one, for the first line."""
    words = [plural(len(plan.rules), "rule")] if plan.rules else []
    return [*words, "chosen by cost"] if plan.chosen else words


def _totals(plan: PhysicalPlan) -> dict[str, float | None]:
    """The most samples and scores over all rounds, None where that depends on a parameter without a value."""
    totals: dict[str, float | None] = {}
    for kind, word in ((ops.Generate, "samples"), ((ops.StepScore, ops.Judge, ops.Prob), "scores")):
        counts = [op.rows for op in everything(plan.ops) if isinstance(op.op, kind)]
        totals[word] = None if None in counts else sum(rows for rows in counts if rows is not None)
    return totals


def _footnote(plan: PhysicalPlan) -> str:
    open_ = [param.name for param in plan.params if param.default is None and param.type in ("int", "float")]
    changed = any(param.default != plan.declared.get(param.name) for param in plan.params)
    at = "the values given" if changed else "their defaults"
    text = f"rows: the most that parameters at {at} can give, over all rounds"
    if any(op.rows is None for op in everything(plan.ops)):
        # Else on how long a list is, or on an option that reads columns.
        text += f"; ? depends on a parameter without one ({', '.join(open_)})" if open_ else "; ? depends on the rows"
    if any(op.cost is not None for op in everything(plan.ops)):
        text += "; est: time for one of many problems"
    return text


def _operators_json(chain: tuple[PhysicalOp, ...], plan: PhysicalPlan, values: Values) -> list[dict[str, Any]]:
    """The operators of a chain; `inputs` names the one before, whose rows an operator reads."""
    return [
        {
            "id": op.id,
            "operator": op.op.operator,
            "stage": op.op.stage,
            "text": describe(op.op, values),
            "implementation": implementation(op, plan),
            "equivalence": op.equivalence,
            "repeats": plan.repeats(op),
            "how": _strategy_json(op),
            "rules": list(op.rules),
            "rows": _whole(op.rows),
            "cost": None if op.cost is None else asdict(op.cost),
            "inputs": [chain[index - 1].id] if index else [],
            "columns": dict(op.columns),
            "body": _operators_json(op.body, plan, values),
            "arms": [_operators_json(arm, plan, values) for arm in op.arms],
            "arm_names": _heads(op),
        }
        for index, op in enumerate(chain)
    ]


def _strategy_json(op: PhysicalOp) -> dict[str, Any] | None:
    """How it runs, by the names of the fields of its strategy; a pattern is its text."""
    if op.strategy is None:
        return None
    strategy = {part.name: getattr(op.strategy, part.name) for part in fields(op.strategy)}
    if isinstance(op.strategy, BudgetStrategy):
        return {"policy": None if op.strategy.policy is None else op.strategy.policy.to_json()}
    if isinstance(op.strategy, GenerateStrategy):
        strategy["decode"] = asdict(op.strategy.decode)
    return {name: value.pattern if isinstance(value, ast.Regex) else value for name, value in strategy.items()}


def _defaults(plan: PhysicalPlan) -> dict[str, ast.Expr]:
    return {param.name: param.default for param in plan.params if param.default is not None}


def _shown(value: ast.Expr | None) -> str | None:
    return None if value is None else format_expr(value)


def _whole(rows: float | None) -> int | float | None:
    """A whole number as an int."""
    return int(rows) if rows is not None and rows == int(rows) else rows


def _rows(rows: float | None) -> str:
    if rows is None:
        return "? rows"
    return "1 row" if rows == 1 else f"{count(rows)} rows"
