"""What budgeted cells of earlier sweeps decide by, so that a sweep goes on with the policies that it began with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qpdsl.planner.budget.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.json_values import plain
from qpdsl.planner.values.value import Value
from qpdsl.run_store.run_record import RunRecord


@dataclass(frozen=True)
class KeptPolicies:
    """The records of budgeted cells, newest first.

    What is learned now could be another policy, by the runs that were kept since.
    """

    records: tuple[RunRecord, ...] = ()

    @classmethod
    def of(cls, records: Iterable[RunRecord]) -> KeptPolicies:
        """Those of these records, oldest first, that are budgeted cells of sweeps."""
        found = [record for record in records if record.sweep is not None and record.policy is not None]
        return cls(tuple(reversed(found)))

    def policy(self, program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
        """What the newest cell of a program with these values and this budget decides by; None where there is none."""
        budget = program.budget
        if budget is None:
            return None
        parameters = {name: plain(value) for name, value in values.items()}
        for record in self.records:
            if (record.program, record.source, record.parameters) != (program.name, program.text, parameters):
                continue
            policy = BudgetPolicy.from_json(record.policy or {})
            if (policy.unit, policy.budget) == (budget.unit, budget.amount) and record.models == dict(program.models):
                return policy
        return None
