"""What happened in a run, as it happens and as it was recorded."""
