"""Learning what a program under `within budget(…)` decides by, from saved runs.

Open `policy_for.py` first: the policy of a program under a budget. `observations.py` has what saved runs show of each
strategy, as tables of rows by strategies, and which strategies draw all of another. `policy_learning.py` finds the best
cascade in these, over bins of support, and what to expect of it on other problems. `calibration.py` finds the cheapest
one that is shown to have a share of the problems right.

A policy depends on the observations alone: the same runs give the same policy. What is expected of it is estimated on
problems that it was not learned from, and nothing is claimed where nothing was seen.
"""
