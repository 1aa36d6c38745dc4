"""What a string or a regex in a program means.

`strings.py` turns a quoted literal into a template, `regex.py` checks that a regex is in the dialect that Python and
llguidance share, and `early_match.py` tells, while a text grows, when the first match of a regex can no longer change.
Nothing here knows about stages or the parse tree.
"""
