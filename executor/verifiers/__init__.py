"""Verifiers: models that score solutions, one file a kind, behind one interface.

Open `verifier.py` first: a `Verifier` lays a problem and its solution out as tokens, with one position to read for each
step, and makes a score of the values read there. `registry.py` lists the kinds and says which one a model is;
`CheckpointTensors` reads the weights of a head that is not the language model's. A text that ends in a step separator
gets no extra empty step, except in programs `like search_and_learn` (`Solution.raw`). Scores are rounded before
anything compares them. Nothing here runs a model: `executor/runtime/scoring/score.py` submits the reads, and a
`ScoreStore` keeps the scores from one problem to the next.
"""
