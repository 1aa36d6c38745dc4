"""The operators between rows: each is one async function from an operator and rows to rows.

One file for each kind: `context` (`chat`, `prompt`, `say`), `extract`, `lists` (`join`, the copies of `each`),
`relational` (`let`, `where`, `keep`, `distinct`, `order`, the value returned), `split`, `vote`. `json_documents` reads
values out of JSON, `valid_records` checks a record once more against its schema. Read `relational` first. `generate`,
`score` (`scoring/`) and `search` (`tree_search/`) stand beside this folder.

An operator reads options through its `Instance` (`whole`, `number`), raises `RowError` where this instance cannot go
on, and does what its strategy says without deciding anything. It never reads its own state from columns, which a
program may assign; that state is `Row.generated`. Filters never change a path; an operator that makes several rows of
one row appends an index to it. Scores are rounded to five digits before anything compares them. To add an operator,
write its function here and its line in the table of `run.py`; nothing here may import that table.
"""
