"""How the built-in models are made and measured; `qpdsl/zoo` holds the results. Not installed with the package.

`python -m family.train` is the entry point. It runs the stages of `training_stages.py`, which is the file to read
first. `tasks` generates and checks the data, `training` trains, `measure` measures and writes the cards. Nothing of the
product imports this folder; tests and benchmarks use `tasks` for problems with known answers.
"""
