"""Search programs: speed of plans, and accuracy against tokens."""
