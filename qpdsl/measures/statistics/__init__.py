"""How sure a figure is, and whether two figures differ.

`intervals.py`: confidence intervals of shares and of means. `paired_tests.py`: two runs over the same problems.
`seed_shares.py`: both for problems that several seeds have answered. `power.py`: how small a difference such a
comparison would have shown. `multiple_tests.py`: several tests at once. All of it is deterministic: what draws at
random draws by a fixed seed.
"""
