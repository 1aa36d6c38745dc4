"""Measurements, each run as `python -m benchmarks.<folder>.<name>`."""
