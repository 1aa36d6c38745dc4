"""Where a program and what it may use come from: files, shipped programs, Python functions."""
