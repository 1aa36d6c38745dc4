"""What a string or a regex means."""
