"""The engine against its peers and against itself."""
