"""The operators that judge rows: each adds a column with a number, but for the one that chooses a row by comparing two.

`score` (reward models, the log-probability, how sure the model was of its tokens), `judge` (a model asked for a mark,
for the probability of an answer, or which of two rows is better), `python_functions` (registered scorers, and
extractors), `checks` (equality with a reference, valid JSON, and unit tests, which
`sandbox/` runs). Read `judge` first.

What holds for operators holds here (see `operators/`). Equal content is asked about once for an instance, which
`Instance.judged` and `Instance.scores` keep; a row whose text is too long for a model has no score, and is counted.
"""
