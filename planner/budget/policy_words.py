"""What a program under a budget decides by, as people read it."""

from __future__ import annotations

from itertools import pairwise

from qpdsl.planner.budget.budget_policy import BudgetPolicy, Turn


def policy_lines(policy: BudgetPolicy) -> list[str]:
    """The budget, the way that a problem is tried by first, what follows each way, and what is expected of it all."""
    lines = [f"budget: {policy.budget:,.6g} {policy.unit} a problem, on average over problems"]
    pending, seen = [policy.first], set[int]()
    while pending:
        number = pending.pop(0)
        seen.add(number)
        turn = policy.turns.get(number)
        lead = f"first {policy.ways[number].name}" if number == policy.first else f"after {policy.ways[number].name}"
        if turn is not None:
            following = [after for after in dict.fromkeys(turn.next) if after is not None]
            pending += [after for after in following if after not in seen and after not in pending]
        if turn is not None or number == policy.first:
            lines.append(lead + ("" if turn is None else f"; {_turn_words(policy, turn)}"))
    return [*lines, _expected_words(policy)]


def doubt(policy: BudgetPolicy) -> str | None:
    """What to say before a run that may not keep its budget; None where it likely does."""
    if policy.keeps:
        return None
    budget = f"the budget of {policy.budget:,.6g} {policy.unit} a problem"
    way = f"`{policy.ways[policy.first].name}` runs"
    if policy.keeps is None:
        return f"note: {way}, and whether it keeps {budget} is not known: {policy.learned_from}"
    return f"warning: {way}, which may not keep {budget}: {policy.learned_from}"


def _turn_words(policy: BudgetPolicy, turn: Turn) -> str:
    """What follows a way, by how sure it was: `support < 0.93: rebase(budget=16); else end`. Equal parts are one."""
    bounds = [(cut, after) for cut, after in zip(turn.cuts, turn.next, strict=False)]
    merged = [(cut, after) for (cut, after), (_, later) in pairwise([*bounds, (0.0, turn.next[-1])]) if after != later]
    words = [f"support < {cut:.4g}: {_way(policy, after)}" for cut, after in merged]
    last = _way(policy, turn.next[-1])
    return "; ".join([*words, f"else {last}"]) if words else f"then {last}"


def _way(policy: BudgetPolicy, number: int | None) -> str:
    return "end" if number is None else policy.ways[number].name


def _expected_words(policy: BudgetPolicy) -> str:
    """What is expected, and by what; where nothing was learned, that alone."""
    if policy.expected is None:
        return policy.learned_from
    words = f"expected: {policy.expected:.1%} right"
    if policy.between is not None:
        words += f" ({policy.between[0]:.1%} to {policy.between[1]:.1%})"
    if policy.spends is not None:
        words += f" at {policy.spends:,.4g} {policy.unit} a problem"
    return f"{words}; learned from {policy.learned_from}"
