"""Whether answers are right: one file a grader.

Open `grader.py` first: what a grader is, and the one that is used where none is named. `known_graders.py` has them by
name.
"""
