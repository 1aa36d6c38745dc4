"""Sweeps: programs by values of their parameters over the same rows, and which is better at equal cost.

Open `grid.py` first: what a cell is (`value_lists.py` reads the lists of values). `planned_cell.py` makes the program
and the plan of each, and `sweep_runs.py` its runs. `sweep.py` runs what is left of all cells side by side, in the order
of `row_order.py`; `kept_cells.py` finds what earlier sweeps have kept, and `kept_policies.py` what budgeted cells
decided by.
`evaluation.py` makes of the outcomes figures (`cell_figures.py`), fronts and comparisons, which `sweep_table.py` shows
to people and `evaluation_records.py` to programs.

A table depends on what is kept alone: not on when rows ended, on how often the sweep was interrupted, or on what cells
shared.
"""
