"""Plans, choices and measurements as people read them: as text, and as data with stable keys.

Open `plan.py` first: EXPLAIN of one plan. `operators.py` says an operator in the words of the language and
`implementation.py` how it runs. `analyze.py` sets what a run came to beside the estimates; `versions.py` shows how a
plan came about, or two plans side by side; `choice.py` what it was chosen from; `measurements.py` devices and
statistics. Text holds no addresses and no clock readings of its own, so golden tests hold it; keys of the data do not
change. Nothing is estimated here: figures come from the plan and from `planner/cost`.
"""
