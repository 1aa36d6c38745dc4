"""Text to syntax tree, or every reason why not.

Open `parser.py` first. One LALR grammar (`grammar/qp.lark`) serves files and `-e` pipelines. `tokens.py` scans a text,
`layout.py` finds its statements and blanks every newline that ends no statement, lark parses what is left, and
`grammar/builders` makes the tree. A statement that does not parse is explained (`errors.py`), blanked and left out, and
the rest is parsed again, so that independent errors come in one go. `ast.File.gaps` remembers what was left out; the
checker keeps quiet about what a gap may have caused.

Names and options are not in the grammar but in `words.py`, so that an unknown option is an error about an option. Every
error is a `Diagnostic` with a stable code. Only a text that cannot be a program (binary, too large) is refused at once
(`QpError`).

A source of the greatest size, 1 MiB, parses in three to five seconds, most of them Lark's own. Two things keep it
there: chains of operators are flat in the grammar, so that a plain value takes four reductions and not ten, and the
cycle collector is off meanwhile.
"""
