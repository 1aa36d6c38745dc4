"""The same computations in torch and numpy: what runs without compiled kernels, and what tests compare kernels with.

Open `reference.py` first: the torch twins of the Triton kernels of attention, plain and in float32. `head_twins.py` are
those of the heads, in blocks of ids, `layer_twins.py` those between a layer's products. `philox.py` is the
counter-based noise of every draw, the same on every device: a sample depends on its key and position alone.
"""
