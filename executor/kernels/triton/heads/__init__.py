"""Tokens drawn on the device.

`dense_head.py` and `sparse_head.py` draw from hidden states; `sample.py` draws where the logits are, from the ids that
`cut.py` finds filters to leave. All three sum parts of the vocabulary up in the way of `vocabulary_parts.py`.
"""
