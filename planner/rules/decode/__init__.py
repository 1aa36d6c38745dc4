"""The rules that expand the decoding step of a `generate`: which variant of each of its parts carries it out.

A step is a logical operator inside `generate`, and `planner/plan/decode_plan.py` has its parts and their variants. Each
rule here picks the variant of one part, and offers the others to the choice by cost; `pick.py` is what they share.
Every one of them is exact: the noise of a token depends on its row and its place alone, so neither what computes the
logits, nor how many tokens a forward checks, nor which of them the model was not asked for, changes any. Where the
program is lossy by its own `via`, they are exact relative to the plainest plan of that.
"""
