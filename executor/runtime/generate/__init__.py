"""The ways to sample: plain, run ahead, as a choice, through a filter, until a vote is decided."""
