"""Measurements of the built-in models on held-out tasks, for their cards and for `docs/reference/built_in_models.md`.

Start with `family_figures`, which runs all measurements and keeps them as JSON. `search_accuracy` compares search
methods, `verifier_accuracy` step scores and their calibration, `agreement` the mini model and the middle layer with the
generator, `record_accuracy` extraction with and without a schema; `cards` writes them down. Programs run through the
engine and sessions that users have (`program_runs`); only step scores and agreement use transformers directly.
"""
