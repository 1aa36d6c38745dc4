"""The cost of a plan: rows, tokens, forwards, seconds.

Start with `estimate.py`. An estimate is made in three steps: `cardinality.py` (rows, rounds and lengths), `demand.py`
(the tokens and forwards that the operators' strategies make of them), and `timing.py` (how full the forwards are, and
their seconds on a measured `device.py`). A model on a server takes no forwards here: `server_times.py` has how long it
is waited for. `run_figures.py` holds the sums of a run and of its calls to servers, `statistics.py` what is kept of
earlier runs: rows and tokens, how often their ways to decode changed a token, and what their routers learned.

Cardinalities depend on the operators alone, so a search through plans computes them once, and plans that differ in
joint knobs alone share their demands too. Statistics hold only what is the same for all plans of a program. Nothing
here changes a plan, except that `with_costs` annotates it.
"""
