"""Runs physical plans: the paged engine, verifiers and the runtime between them."""
