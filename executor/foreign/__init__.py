"""What a stranger made, taken with care: it may have no end, on purpose.

`bounded_file.py` reads a file up to a bound, `plain_tables.py` takes a SQLite file only where it has tables alone, and
`time_limit.py` ends Python code that goes on too long. Readers elsewhere use these and add what they know of their
format. The process for code that a model wrote is `runtime/sandbox/`.
"""
