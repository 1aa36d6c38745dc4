"""Programs that leave arms and widths open, for a budget to choose: their strategies, and the plan that tries them.

Open `written_strategies.py` first: the strategies of a program, each an ordinary program with fixed widths. Each is
planned for itself, by all rules, and their plans are the arms of one `ops.BudgetedArms`, with the policy that says
which of them a problem is tried by (`planner/plan/budget_policy.py`). What must hold: a strategy of the whole plan
makes the requests of its own plan, with the same noise keys, so it gives the very same tokens.
"""
