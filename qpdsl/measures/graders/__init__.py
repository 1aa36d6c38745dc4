"""The graders that `--grader` names.

`known_graders.py` names them all and makes one of its name; each other file holds one. The default, `equal`, is in
`measures/equal_answer.py`. A grader depends on the answer and on the row alone: it gives the same grade in every run.
One that runs code, or a model, says so, and is used only where the user asked for it.
"""
