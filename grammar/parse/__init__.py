"""Text to parse tree, or every reason why not."""
