"""Benchmarks in the form in which they are published: which field is the problem, which the answer, who grades it.

Open `dataset_form.py` first. `math_sets.py`, `code_sets.py` and `instruction_sets.py` hold the forms, and
`known_sets.py` names them all, and tells a file's form by its fields. The files are the user's; none ships.
"""
