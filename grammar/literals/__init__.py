"""What a string or a regex in a program means.

`strings.py` turns a quoted literal into a template. A regex has one reading for everything that takes one: `regex.py`
checks that it is in the dialect and reads it. `matcher.py` searches a text for it (`matches`, `extract`) in linear
time; `early_match.py` shows, while a text grows, when the first match can no longer change; `constraint_regex.py`
writes the regex for llguidance (`as`, `pattern=`). No other module gives a user's pattern to Python's `re`. Nothing
here knows about stages or the parse tree.
"""
