"""Products of hidden states and weights that stay as a checkpoint holds them: floats, or four and eight bits.

Open `product.py` first: a linear layer as a function of tensors. `panels.py` lays weights out in the order in which
they are read, and `emit.py` is the code, compiled once for each form of panels and each width of vectors: over
neighbouring panels, or over listed ones. An output is one chain of sums over the inputs, in one order: never may it
depend on the number of rows, on their place in a tile, or on how outputs are shared out to threads.
"""
