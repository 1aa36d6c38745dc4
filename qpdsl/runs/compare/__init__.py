"""Saved runs side by side: which is better, by how much, how sure that is, and where they differ.

Open `comparison.py` first: two sides, problem by problem. A side (`side.py`) is one saved run, or several that differ
in their seeds alone; what was run differently on both, and whether both drew by the same random numbers, is there too.
`comparison_text.py` and `comparison_record.py` show a comparison in a terminal and as JSON; `runs_page.py` is a page
about one run or many.

`divergence.py` finds the first sample of a row that differs between two runs, token by token. `retraced.py` runs rows
again to know their samples and margins, `first_divergences.py` follows each problem of a comparison to where it parted,
and `divergence_text.py` shows that.

A figure is compared over the problems that both sides have, and the problem is what is counted: answers of several
seeds to one problem are not independent. Nothing here writes a file or prints.
"""
