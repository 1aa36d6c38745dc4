"""Tests on real models, which nobody else has: they run where QPDSL_REAL_MODELS names a folder.

`python -m benchmarks.common.real_models FOLDER` makes it.
"""
