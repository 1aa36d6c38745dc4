"""Watching what is decoded: stop strings over incremental text."""
