"""The kinds of `qpdsl run`: one answer, many rows, analyzed, watched."""
