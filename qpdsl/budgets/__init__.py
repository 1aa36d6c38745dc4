"""Learning what a program under `within budget(…)` decides by, from runs that were kept.

Open `policy_for.py` first: the policy of a program's ways under a budget; `program_policy.py` has it from the program
itself. `kept_ways.py` finds what kept runs tell of each way, as `observations.py`: tables of rows by ways.
`nested_draws.py` says which ways draw all of another. `policy_learning.py` finds the best cascade in these
(`way_cascade.py`), over bins of support (`support_bins.py`), and `expected_accuracy.py` says what to expect of it on
other problems. `warm_up.py` runs all ways on a few rows where nothing is kept.

A policy depends on the observations alone: the same runs give the same policy. What is expected of it is told of
problems that it was not learned from, and nothing is told where nothing was seen.
"""
