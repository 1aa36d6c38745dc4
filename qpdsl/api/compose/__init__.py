"""Composing a program in Python: a decorated function, turned into the syntax tree that `.qp` text would give.

Open `decorator.py` first. The function runs once, over `Symbol`s in the place of its parameters; each call in it adds a
stage (`stages.py`, `blocks.py`), with the place in the Python file as its span. `stage_call.py` turns the arguments of
a call into syntax, `signature.py` the parameters and the result, `annotations.py` the types of Python. A new stage of
the language needs a method in `stages.py` and nothing else here, a new function one in `expressions.py`. The checker
says whether a program is valid: only what has no syntax is refused here.
"""
