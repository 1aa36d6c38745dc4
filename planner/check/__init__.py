"""Syntax tree to logical plan: names resolved, types checked, and every error of a file reported in one go.

Start with `program.py`, which checks the programs of a file; `blocks.py` dispatches to the checks of each stage. They
share a `Binder` (`binder.py`), which holds the scope and resolves names. Blocks and calls add the stages inside them
through it, so that they need not import `blocks.py`.

A check reports a fault and continues. It reports nothing that an earlier fault or a part that did not parse may have
caused. Plans are made even of programs with errors: the language server reads the columns from them. Columns, types and
schemas are worked out here and in `planner/names`; no rule of the optimizer is known here.
"""
