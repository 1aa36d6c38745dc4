"""A recorded run as a page, and as a file for trace viewers."""
