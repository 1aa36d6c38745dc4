"""What a run has done last, in a line for people: a comment in a server's stream, a line below a notebook's cell."""

from __future__ import annotations

from qpdsl.executor.events.events import OperatorDone
from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.plan.physical import PhysicalPlan, everything


class ProgressWords:
    """Says of the operators of a plan what they came to: `round 2: generate llm: 4 rows, 57 tokens`."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._kinds = {node.id: in_words(node.op) for node in everything(plan.ops)}

    def line(self, event: OperatorDone) -> str:
        place = "".join(f"round {number + 1}: " for number in event.rounds[-1:])
        rows = f"{event.rows_out} row{'' if event.rows_out == 1 else 's'}"
        tokens = f", {event.sampled_tokens} tokens" if event.sampled_tokens else ""
        return f"{place}{self._kinds.get(event.operator, event.operator)}: {rows}{tokens}"
