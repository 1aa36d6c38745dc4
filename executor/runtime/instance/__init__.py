"""What the operators of one run of a program share.

Start with `instance`: one run of a program over one problem, its services, options and usage. `candidates` holds the
rows between operators and the keys of their random numbers, `operator_events` what an operator reports, `functions`
the Python functions that a caller registered, `user_code` how they are called so that whatever they do stays their own
affair, `row_tasks` runs coroutines side by side and ends what takes too long, `mathematics` is the process that
compares answers, and `request_cache` the requests of all instances that go to a large model in batches.

A row has a context (chat turns, or a prompt), its path of indices through the fan-outs, its columns, and what was
generated since the context was set. A program may assign columns, so the runtime never reads its own state from them. A
path is its parent's and one index more, which makes the candidates a tree.

A noise key depends on the seed, the texts of the context, the ordinal of the `generate`, the rounds and the path, and
on nothing of the schedule, so a sample is the same in any batch. Operators themselves are not known here: this folder
imports neither `operators` nor `generate`. `mathematics.py` runs itself as a script, so it imports nothing of this
project.
"""
