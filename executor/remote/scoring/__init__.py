"""Numbers that a server reads of given tokens: log-probabilities, and the scores of reward models.

Open `scored.py` first: it serves the requests that draw nothing. `places.py` says what is to be read where;
`log_probabilities.py` and `native_log_probabilities.py` write the questions to a language model's server, and
`reward_scores.py` those to one of a reward model. `scoring_abilities.py` finds out which of them a server answers.

Each question is a `Reading` (`reading.py`): a body, and how its answer becomes numbers. Sending, retrying and keeping
is the engine's affair, so nothing here opens a connection. The difference of two log-probabilities after the same
tokens is that of their logits, so a verifier that is read off a language model's head needs no logits.
"""
