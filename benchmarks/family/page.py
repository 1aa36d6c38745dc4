"""The documentation page of the built-in family, written from its figures."""

from __future__ import annotations

from qpdsl.family.measure.cards import (
    agreement_table,
    judgement_tables,
    mark_sentence,
    percent,
    search_table,
    small_table,
    table,
)
from qpdsl.family.measure.family_figures import Figures
from qpdsl.family.measure.record_accuracy import RECORD_COMMANDS


def page(figures: Figures, machine: str) -> str:
    """The documentation page."""
    records = figures.records
    sizes = [[f"`zoo/{name}`", f"{count:,}"] for name, count in figures.parameters.items()]
    kinds = [[kind, f"`{command}`", percent(records.by_kind[kind])] for kind, command in RECORD_COMMANDS.items()]
    greedy, beam = figures.accuracy("greedy", 1), figures.accuracy("beam", 16)
    weighted = figures.accuracy("weighted", 16)
    return f"""# The built-in family

Three small Llama models that ship inside the package, so that everything works from the first minute. They know two
generated tasks and nothing else: counting problems in plain words, every step of which can be checked exactly, and
short notes to be extracted as JSON. Nothing here says anything about GSM8K or any other task.

{table(["model", "parameters"], sizes)}

`zoo/counting` is stopped half trained on purpose. On {figures.problems} held-out problems, greedy decoding is right on
{percent(greedy.right)}, weighted best-of-16 with `zoo/counting-prm` on {percent(weighted.right)}, beam search (width 4,
expand 4) on {percent(beam.right)}.

![accuracy against tokens, by level, calibration, agreement](pictures/family.svg)

## Search

Samples at temperature 0.8; every N takes the first N of the same 64. pass@N: at least one is right. Tokens are those
that the generator sampled.

{search_table(figures)}

{mark_sentence(figures)}
## The verifier's steps

Over 16 sampled solutions a problem; a step is wrong when it, or any step before it, is wrong.

{judgement_tables(figures.judgement)}

## The mini model

`zoo/counting-mini` is an eighteenth of `zoo/counting`'s size, and trained for a short time on purpose: it knows the
form of every text, which is most of a solution's tokens, and few answers. In filter decoding
(`programs/filter_decoding.qp`) it writes the tokens that it is sure of, and `zoo/counting` the others. On the same
problems:

{small_table(figures)}

Agreement with `zoo/counting` at the {figures.mini.positions:,} tokens of its greedy solutions, by the mini model's
confidence. The expected acceptance of its drafts in speculative sampling at temperature 1 is
{percent(figures.mini.acceptance)} a token.

{agreement_table(figures.mini, "confidence")}

## The middle layer

The choice of `zoo/counting`'s middle layer against its last layer's, by the middle layer's margin.

{agreement_table(figures.middle, "margin")}

## Records

{records.notes} held-out notes, as many of each kind; right means all fields. Decoding held to the schema:
{percent(records.constrained)}; without it: {percent(records.free)}. The commands print the share of each kind.

{table(["kind", "command", "right under its schema"], kinds)}

Written by `python -m benchmarks.family.measure`. Measured on: {machine}.

## Training them

```sh
python -m qpdsl.family.train --out family
```

trains the whole family from nothing: the solver (which leaves `counting` on its way), the mini model, samples from
`counting`, a head that drafts from its hidden states (`counting-eagle`), and the verifier grown from the solver. It
goes on from its last checkpoint when it was interrupted. On a CPU add `--compile`, and run `--only eagle` and
`--only prm` side by side; it takes some hours on two cores. `--only mini` trains the mini model alone, in some minutes
on one core.
"""
