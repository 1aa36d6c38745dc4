"""Chunks of sequences to the input of one forward."""
