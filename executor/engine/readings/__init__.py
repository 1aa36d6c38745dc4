"""What is read off hidden states besides tokens.

Open `planned_reads.py` first: reads of logits and of log-probabilities are planned before the device is given anything,
so that one copy brings what all of them need, and those of a step are computed together. `token_confidence.py` tells
how the distribution of a draw looks. What is summed over all ids is summed in float64, row by row, so that no result
depends on the other rows.
"""
