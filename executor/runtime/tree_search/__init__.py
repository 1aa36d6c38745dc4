"""The `search` operator: a tree of rows below each row that comes in, grown by one expansion after another.

`growth.py`, which comes first to read, runs the operator: it asks a policy which rows to expand, runs the body on each,
and tells the policy the values of their children. `search_tree.py` has the nodes. `puct.py` and `ab_mcts.py` are the
policies; each is a class that fulfils `Policy` there.

A search depends on values alone, which are rounded as scores are, and on random numbers of its own, keyed as noise is;
nothing depends on which expansion is done first. A node is expanded under a path of its own: its row's, and the number
of the expansion there. So what is drawn below a row depends on that row, not on when the search came to it.
"""
