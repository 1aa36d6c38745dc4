"""The documentation page of the built-in family, written from its figures."""

from __future__ import annotations

from family.measure.cards import (
    agreement_table,
    judgement_tables,
    mark_sentence,
    percent,
    search_table,
    small_table,
    table,
)
from family.measure.family_figures import Figures
from family.measure.record_accuracy import RECORD_COMMANDS
from family.measure.thinking_accuracy import ThinkingFigures


def page(figures: Figures, thinking: ThinkingFigures, machine: str) -> str:
    """The documentation page."""
    records = figures.records
    parameters = {**figures.parameters, "counting-thinker": thinking.parameters}
    sizes = [[f"`zoo/{name}`", f"{count:,}"] for name, count in parameters.items()]
    off, free, short, waited = (percent(thinking.thought(*kind).right) for kind in ((0,), (None,), (32,), (32, True)))
    kinds = [[kind, f"`{command}`", percent(records.by_kind[kind])] for kind, command in RECORD_COMMANDS.items()]
    greedy, beam = figures.accuracy("greedy", 1), figures.accuracy("beam", 16)
    weighted = figures.accuracy("weighted", 16)
    return f"""# The built-in models

Four small Llama models that ship inside the package, so that everything works from the first minute. They know two
generated tasks and nothing else: counting problems in plain words, every step of which can be checked exactly, and
short notes to be extracted as JSON. Nothing here says anything about GSM8K or any other task.

{table(["model", "parameters"], sizes)}

`zoo/counting` is stopped half trained on purpose. On {figures.problems} held-out problems, greedy decoding is right on
{percent(greedy.right)}, weighted best-of-16 with `zoo/counting-prm` on {percent(weighted.right)}, beam search (width 4,
expand 4) on {percent(beam.right)}.

![accuracy against tokens, by level, calibration, agreement](../pictures/family.svg)

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

## The thinker

`zoo/counting-thinker` thinks before it answers counting problems: it works out each step digit by digit, and guesses
what its thought did not come to. It is right on {off} without a thought and on {free} with thoughts as long as it
likes; on {short} with thoughts of 32 tokens, and on {waited} where "Wait" and 32 more follow
([all budgets](../../benchmarks/results/thinking_budget.md)).

![right answers over the budget of the thought](../../benchmarks/results/thinking_budget.svg)

## The middle layer

The choice of `zoo/counting`'s middle layer against its last layer's, by the middle layer's margin.

{agreement_table(figures.middle, "margin")}

## Records

{records.notes} held-out notes, as many of each kind; right means all fields. Decoding held to the schema:
{percent(records.constrained)}; without it: {percent(records.free)}. The commands print the share of each kind.

{table(["kind", "command", "right under its schema"], kinds)}

Written by `python -m benchmarks.family.measure`. Measured on: {machine}.

[`family/`](../../family/README.md) trains them.
"""
