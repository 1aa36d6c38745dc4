"""The router: what its policies come to on LLM-QP's synthetic harness, and on recorded decoding.

`harness.py` and `recorded.py` are the commands. The policies are those of `executor/routing`, as they run. `regret.py`
is what choices came to, against the best fixed arm and the best arm of every step. `recorder.py` has every arm of an
engine's head compute each routed step; `route_trace.py` replays policies on such steps, and the choices that a run
recorded.
"""
