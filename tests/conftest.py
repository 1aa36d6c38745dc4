"""One thread: tests run beside each other, and two OpenMP teams on one core are many times slower than one thread."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
