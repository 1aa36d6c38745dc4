"""One step: forward, read, draw."""
