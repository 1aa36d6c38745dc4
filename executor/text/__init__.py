"""Text and token ids: contexts, detokenizing, stop strings, constraints."""
