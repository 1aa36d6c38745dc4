"""The Python face: programs as Python objects, whichever way they were written.

Open `program.py` first: `Program` is what users call, await, map and stream. `background.py` runs programs in one
thread with an event loop of its own; `streams.py` are the results of `map` and `stream`, `binding.py` the session, the
seed and the models that programs run with. `composition.py` is the program that a decorated function is composing,
`call_sites.py` finds the place of each call in the Python file, and `compose/` turns the calls into syntax. From the
syntax tree on, both faces share everything: nothing here checks or plans by itself. `evaluating.py` compares programs
on rows, by what `qpdsl eval` is made of. `notebook.py` lets cells call programs and shows runs there, `seen_run.py`
what was seen of one, `html.py` programs, plans and evaluations. Importing these files must not load torch, so what runs
a program is imported when it runs.
"""
