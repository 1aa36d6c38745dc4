"""A physical plan through the rules, then the choice between alternatives by cost.

Open `optimizer.py` first: the driver of the rules. It times every rule, can disable it, verifies the plan after it, and
keeps the plan after each rule that changed it; a rule that raises, makes an invalid plan or never stops changing the
plan is reported as a fault, with its name. `by_cost.py` searches the knobs that the rules left open,
once after the rules and only where the device was measured; `plan_candidate.py` says what a
candidate is worth and what the program permits, `measured_ways.py` what was measured of ways that lose something;
`kv_shares.py` splits the memory between the models, and `batch_surface.py` estimates their throughput by sequences and
tokens of a step, for people to read. The rules say what may be done, the cost says how much of it pays: nothing here
knows a rule by its name, and no rule knows the cost.
"""
