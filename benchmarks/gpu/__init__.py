"""Everything that needs a GPU."""
