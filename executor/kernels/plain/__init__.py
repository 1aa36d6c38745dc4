"""The same computations in torch: what a CPU runs without compiled kernels, and what tests compare kernels with."""
