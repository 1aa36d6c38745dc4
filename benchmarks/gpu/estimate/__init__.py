"""What a step should take on a GPU, derived on paper: shapes, launches, instructions, bandwidths and named assumptions.

    python -m benchmarks.gpu.estimate [--results gpu.json] [--output DIR]

Open `step.py` first: a step is a list of launches, each with what it moves, multiplies and issues, and each takes what
the slowest of these does, and a start. `shapes.py` has the models, `devices.py` the GPUs, `instructions.py` what the
compiler made of the attention kernels, `assumptions.py` every number that was guessed, with the range in which it is
thought to lie. `cases.py` puts them together, `page.py` writes the tables, and `verdicts.py` holds them against what a
run of `benchmarks.gpu.run` measured. Nothing here loads torch, so it runs on any machine.
"""
