"""Which of several ways to carry out a step is cheapest, learned while steps are carried out (LLM-QP, section 4).

Open `policy.py` first: a policy chooses an *arm* by the *context* of a step and is told what it cost, the *loss*.
`policies.py` makes one by name. `ridge.py` is what the linear ones know: losses as linear functions of the context.
`lin_ucb.py` and `thompson.py` choose by that and by how sure it is; `thresholds.py` weighs thresholds of one feature;
`fixed.py` never learns. `drift.py` wraps a linear policy where costs change. `route_table.py` makes a policy cheap:
arms by one number, looked up, from a policy that is asked now and then. `features.py` makes contexts. `regret.py` says
what choices came to, against the best fixed arm and the best arm of every step, `route_trace.py` records steps with the
losses of all arms and replays policies on them.

Nothing here knows what an arm does, nor imports more than numpy. Policies are deterministic: the same contexts, losses
and seed give the same choices. Their state is plain JSON. `executor/kernels/device_router.py` has LinUCB for a device.
"""
