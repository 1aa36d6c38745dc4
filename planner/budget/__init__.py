"""Programs under `within budget(…)`: what they decide by.

`budget_policy.py`: a table that says which way of several a problem is tried by, and when it ends. `policy_words.py`:
the same as people read it. What is chosen among is in `planner/ways`, and what a policy is learned from in
`qpdsl/budgets`.
"""
