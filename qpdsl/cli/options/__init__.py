"""Options that several commands share, each group with what it asks for.

Each file has a decorator for the command and a frozen dataclass with the values, which the command's own options
inherit: `session_options.py` says what programs compute on and what they may take of servers, `input_options.py` what
data is read and how, `grading_options.py` who grades answers, `budget_options.py` what a problem may take, and
`cluster_options.py` where rows run.
"""
