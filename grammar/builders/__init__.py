"""Parse tree to syntax tree."""
