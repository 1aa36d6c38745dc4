"""The `search` operator: a tree of rows below each row that comes in, grown by one expansion after another.

Open `search.py` first: the loop, how a row is carried on to its end, and the rows that come out. `nodes.py` is the
tree, and what a policy is: which node is expanded next. `puct.py`, `ab_mcts.py` (AB-MCTS-A, and which arm of a `branch`
makes a child) and `hierarchical.py` (AB-MCTS-M) are the policies, which know values and no rows.

A search depends on values alone, which are rounded as scores are, and on random numbers of its own, keyed as noise is
and drawn in the order of the expansions; nothing depends on which of those side by side is done first. So with one at a
time a search of few simulations is the beginning of one of many. A node is expanded under a path of its own: its row's,
and the number of the expansion there. What is drawn below a row depends on that row, not on when the search came to it.
"""
