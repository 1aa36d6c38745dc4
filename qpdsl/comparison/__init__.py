"""What kept runs say beside each other: which is better, by how much, how sure that is, and where they differ.

Open `comparison.py` first: two sides, problem by problem, and what came of that. A side (`side.py`) is one kept run, or
several that differ in their seeds alone. `matching.py` finds the problems that two sides have in common;
`setup_changes.py` says what was run differently, and whether both drew by the same random numbers; `verdict.py` puts
the outcome into a sentence. `comparison_text.py` and `comparison_record.py` show a comparison in a terminal and as
JSON, and `notes.py` has what to know before they are believed; `operator_figures.py` sets operators side by side.
`page/` makes a page about one run or many.

A figure is compared over the problems that both sides have, and the problem is what is counted: answers of several
seeds to one problem are not independent. Nothing here writes a file or prints.
"""
