"""The commands over runs that are kept. None of them loads torch."""
