"""Whether answers are right, and what a run's answers say with which certainty.

Open `grader.py` first: what a grader is. `equal_answer.py` is the one that is used where none is named.
"""
