"""Makes transformers' modules compute every row by itself on a CPU, so that a row's bits depend on that row alone.

Open `rowwise.py` first: what is replaced in a model that keeps its own modules, and how it is known that nothing else
mixes rows. Linear layers become `PackedLinear` (`products.py`), and mixtures of experts run grouped by expert
(`experts.py`). Torch computes some functions of single numbers in two ways, whole vectors at a time and the last few
numbers alone, and which of them a number gets depends on how many rows there are; `uniform.py` makes that one way.

Nothing is taken on trust: `audit.py` runs the model once and looks at every operation that torch carries out. Where one
is left whose rounding may depend on other rows, the engine pads each forward, as it does for any model that it does not
know (`rowwise.py`), and a mixture of experts counts as one that mixes rows.
"""
