"""Python functions to syntax trees."""
