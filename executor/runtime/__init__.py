"""Physical operators over candidate rows, and the events they emit."""
