"""Plans, choices and measurements as people read them: as text, and as data with stable keys.

Open `plan.py` first: EXPLAIN of one plan, each operator in the words of the language and how it runs.
`tree_table.py` fits the columns into the width of a terminal. `analyze.py`
shows what was measured beside the estimates; `versions.py` shows how a plan came about and what it was chosen from, or
two plans side by side; `measurements.py` devices and statistics; `roofline_tables.py` what a model takes on hardware,
and `surface_tables.py` how a program's batches are best cut. The text contains no addresses and no time of day, so
golden tests can compare it, and nothing that a terminal would obey; the keys of the data do not change.
Nothing is estimated here: figures come from the plan, from `planner/cost` and from `planner/capacity`.
"""
