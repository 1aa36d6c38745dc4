"""A program over the rows of a data set."""
