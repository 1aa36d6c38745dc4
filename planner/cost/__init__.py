"""What a plan takes: rows, tokens, forwards, seconds."""
