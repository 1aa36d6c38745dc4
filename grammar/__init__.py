"""The `.qp` language: source text to a frozen syntax tree, with every error located.

Open `parse/parser.py` first, and `qp.lark` here for the grammar. This folder holds what all of the front end needs:
sources and spans, the words of the language, diagnostics with their codes, the files that a program may read, and the
ids of models with adapters.
`ast/` is the tree, `literals/` the meaning of strings and regexes. `parse/` and `builders/` make the tree, `format/`
writes it back as text.

Nothing here imports torch or anything of ours from outside this folder. Names and types are not checked here but in
`planner/`. Spans take no part in the equality of trees: layout means nothing. Every code has a page in `explanations/`:
prose, a program that gives it and one that is right.
"""
