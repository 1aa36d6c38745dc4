"""The router: what its policies come to on LLM-QP's synthetic harness, and on recorded decoding.

`harness.py` and `recorded.py` are the commands. The policies that serve are in `executor/routing`; here is what is only
measured. `policies.py` makes any by name. `drift.py` wraps a linear policy where costs change. `route_table.py` makes a
policy cheap: arms by one number, looked up, from a policy that is asked now and then. `features.py` makes contexts.
`regret.py` is what choices came to, against the best fixed arm and the best arm of every step. `recorder.py` has every
arm of an engine's head compute each routed step, `route_trace.py` keeps such steps and replays policies on them.
"""
