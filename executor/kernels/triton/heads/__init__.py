"""Tokens drawn on the device.

`sample.py` draws where the logits are, `dense_head.py` and `sparse_head.py` from hidden states; all three sum parts of
the vocabulary up in the way of `vocabulary_parts.py`.
"""
