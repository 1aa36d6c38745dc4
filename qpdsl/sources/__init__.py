"""Where a program and what it may use come from: files, shipped programs and data, Python functions, models.

Open `programs.py` first: it finds the program that a command line names and checks it. `surroundings.py` holds what a
program may use besides its text, `functions.py` registers Python scorers and extractors, and `function_digest.py` says
when they have changed. `several_programs.py` finds the programs of a command that takes several. A program reads files
in its own folder and in folders that the user allowed, and nowhere else.
"""
