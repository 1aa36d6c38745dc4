"""Rules for models that a server elsewhere runs: what the program knows of its calls, and the server does not.

Such a server charges each call by itself. `prefix_first.py` lets one sample of a prompt go before the others, so that
the server's prefix cache has the prompt; `speculative_calls.py` asks one call for the text of several. What the server
can do is in `PhysicalPlan.remote`, as it was probed; where nobody has asked it, nothing is decided here.

In which order requests wait for a server is no rule: only the engine knows which ones wait. It lets those that share a
prefix go one after the other (`executor/remote`).
"""
