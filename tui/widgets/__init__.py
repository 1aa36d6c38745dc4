"""The parts that screens are made of: lists, tables, details, the title, the line of keys, figures and colours.

Open `line_list.py` first, the list under three of the screens. `table_columns.py` lays out a line of a table, and
`palette.py` gives colours their meaning. Text of a model or a user is shown only through `safe_text.py`. No
meaning depends on colour alone.
"""
