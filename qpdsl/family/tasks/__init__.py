"""The two tasks that the built-in models know: counting problems and record extraction. Standard library only."""
