"""Makes transformers' modules compute every row by itself on a CPU, so that a row's bits depend on that row alone.

Open `rowwise.py` first: what is replaced in a model that keeps its own modules, and how it is known that nothing else
mixes rows. Linear layers become `PackedLinear` (`products.py`), and mixtures of experts run grouped by expert
(`experts.py`). Torch computes some functions of single numbers in two ways, whole vectors at a time and the last few
numbers alone, and which of them a number gets depends on how many rows there are; `uniform.py` makes that one way.

Modules stay where they are and get another `forward`; their weights are emptied, so that memory does not double.
Nothing is taken on trust: `audit.py` runs the model on a few rows and looks at every operation that torch carries out.
Modules in which it finds functions of single numbers get uniform ones. Where an operation is left whose rounding may
depend on other rows, the engine pads each forward, and a mixture of experts counts as one that mixes rows. A new
operation of torch is doubted until it is in the lists of `audit.py`, and what is put there needs a reason.
"""
