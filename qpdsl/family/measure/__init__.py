"""Measuring the built-in family on held-out tasks: search, verifier, mini model, middle layer, records; model cards."""
