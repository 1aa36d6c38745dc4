"""The one layout of programs: tokens to lines, and trees to text.

Open `formatter.py` first. The formatter works on tokens, not on the tree, so that comments, numbers and strings stay as
they were written: `pieces.py` nests the tokens, `spacing.py` sets them on one line, `lines.py` breaks a line that is
full. A tree that was built and not written is first turned into plain text (`unparse.py`), then formatted. Formatting
changes no tree, loses no comment, and formatting again changes nothing.
"""
