"""Kernels compiled for this CPU when a model is loaded."""
