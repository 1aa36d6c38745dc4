"""One thread: tests run beside each other, and two OpenMP teams on one core are many times slower than one thread."""

import torch

torch.set_num_threads(1)
