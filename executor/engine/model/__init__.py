"""A checkpoint behind paged attention."""
