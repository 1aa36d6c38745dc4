"""Which of several ways to carry out a step is cheapest, learned while steps are carried out (LLM-QP, section 4).

Open `policy.py` first: a policy chooses an *arm* by the *context* of a step and is told what it cost, the *loss*.
`linear.py` has those that know losses as linear functions of the context, LinUCB and Thompson sampling;
`drift.py` has these forget where costs change, and `route_table.py` looks most steps up. `thresholds.py` weighs
thresholds of one feature.

Nothing here knows what an arm does, nor imports more than numpy. Policies are deterministic: the same contexts, losses
and seed give the same choices. Their state is plain JSON. `benchmarks/routing` measures them, as they run.
"""
