"""What an engine is asked and what it answers. Nothing here knows how an engine works."""
