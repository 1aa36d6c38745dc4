"""The parts that screens are made of: lists, tables, details, the bars, figures and colours.

Open `line_list.py` first, the list under three of the screens. `table.py` lays out a line of a table, and
`palette.py` gives colours their meaning; no meaning depends on colour alone. Text of a model or a user goes through
`one_line` or `printable` of `qpdsl.grammar.printable`, and the dashboard looks at every line once more.
"""
