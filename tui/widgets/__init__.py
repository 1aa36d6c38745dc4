"""The parts that screens are made of: lists, tables, details, the title, the line of keys, figures and colours.

Open `line_list.py` first, the list under three of the screens. `table_columns.py` lays out a line of a table, and
`palette.py` gives colours their meaning; no meaning depends on colour alone. Text of a model or a user goes through
`one_line` or `printable` of `qpdsl.grammar.printable`, and `safe_text.py` looks at every line once more.
"""
