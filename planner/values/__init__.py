"""Values of the language: what they are, their types in words, and the functions that are built in.

Open `value.py` first: values, how types are written and which fits where; `library.py` has one entry for
each function over one row and one for each aggregate, with what it takes, what it gives and how it is computed. The
checker (`planner/names/types.py`) and the evaluator (`planner/plan/evaluate.py`) read the same entries. To add a
function, add its entry there, its name in `grammar/words.py` and its twin in `qpdsl/api/compose/expressions.py`.
"""
