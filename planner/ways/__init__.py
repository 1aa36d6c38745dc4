"""Programs that leave arms and widths open, for a budget to choose: their ways, and the plan that tries them.

Open `open_program.py` first: the ways of a program, each an ordinary program with fixed widths. Each is planned for
itself, by all rules, and `strategy_plan.py` puts the plans together as the arms of one `ops.Strategy`, with the policy
that says which of them a problem is tried by (`planner/budget/budget_policy.py`). What must hold: a way of the whole
plan makes the requests of its own plan, with the same noise keys, so it gives the very same tokens.
"""
