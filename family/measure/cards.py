"""The model cards, and the tables in them, written from figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from family.measure.agreement import Agreement
from family.measure.family_figures import Figures
from family.measure.record_accuracy import RECORD_COMMANDS
from family.measure.search_accuracy import COUNTS, TEMPERATURE, MethodAccuracy
from family.measure.thinking_accuracy import ThinkingFigures
from family.measure.verifier_accuracy import Judgement

_BUILT = "Measured by `python -m benchmarks.family.measure` on the float16 weights in this folder."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, marks, *rows])


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def search_table(figures: Figures) -> str:
    """Accuracy in all and by level, and tokens a problem, for every method and N."""
    header = ["", "N", "right", *[f"level {level}" for level in figures.levels], "tokens a problem"]
    return table(header, [_row(accuracy) for accuracy in figures.search])


def small_table(figures: Figures) -> str:
    """The generator alone, the mini model alone, and both, in all and by level."""
    header = ["", "right", *[f"level {level}" for level in figures.levels]]
    greedy = replace(figures.accuracy("greedy", 1), method="counting, greedy")
    rows = [_row(accuracy) for accuracy in (greedy, *figures.small)]
    return table(header, [[name, *shares[:-1]] for name, _, *shares in rows])


def _row(accuracy: MethodAccuracy) -> list[str]:
    by_level = [percent(share) for share in accuracy.by_level.values()]
    return [accuracy.method, str(accuracy.n), percent(accuracy.right), *by_level, f"{accuracy.tokens:,.0f}"]


def thinking_table(figures: ThinkingFigures) -> str:
    """Accuracy in all and by level, and tokens of thought, for every budget."""
    levels = figures.thoughts[0].by_level
    header = ["tokens of thought at most", "right", *[f"level {level}" for level in levels], "tokens of thought"]
    rows = []
    for entry in figures.thoughts:
        budget = "no bound" if entry.budget is None else str(entry.budget)
        name = f'{budget}, "Wait", {budget}' if entry.forced else budget
        rows.append([name, percent(entry.right), *map(percent, entry.by_level.values()), f"{entry.tokens:,.0f}"])
    return table(header, rows)


def judgement_tables(judgement: Judgement) -> str:
    """Step accuracy, and calibration by score."""
    steps = table(
        ["steps", "judged as the checker does"],
        [
            [f"all {judgement.steps:,}", percent(judgement.accuracy)],
            ["right ones", percent(judgement.accuracy_right)],
            ["wrong ones", percent(judgement.accuracy_wrong)],
        ],
    )
    bins = table(
        ["score", "steps", "mean score", "right"],
        [
            [f"{b.low:.1f} to {b.low + 0.1:.1f}", f"{b.steps:,}", percent(b.score), percent(b.right)]
            for b in judgement.bins
        ],
    )
    return f"{steps}\n\nCalibration (expected calibration error {percent(judgement.error)}):\n\n{bins}"


def agreement_table(agreement: Agreement, measure: str) -> str:
    """Agreement by the confidence of the cheap predictor; `measure` names how that was measured."""
    rows = [[f"{b.low:g} to {b.high:g}", percent(b.share), percent(b.agree)] for b in agreement.bands]
    return table([measure, "tokens", "same token"], [["all", "100.0%", percent(agreement.same)], *rows])


def mark_sentence(figures: Figures) -> str:
    """The verifier compared with the mark, where the mark was measured."""
    if not figures.mark:
        return ""
    pairs = [
        f"{percent(value)} at {n} (the trained verifier: {percent(figures.accuracy('weighted', n).right)})"
        for n, value in figures.mark.items()
        if n > 1
    ]
    return (
        "The mark: with the solver's smallest token probability as a solution's score, weighted best-of-N comes to "
        f"{' and '.join(pairs)}.\n"
    )


def generator_card(figures: Figures, trained: str) -> str:
    records = figures.records
    kinds = ", ".join(f"{kind} {percent(value)}" for kind, value in records.by_kind.items())
    return f"""# counting

A Llama of {figures.parameters["counting"]:,} parameters that knows two things: counting problems in plain words, solved
one equation a step, steps parted by a blank line, the answer stated at the end; and notes about people, orders and
meetings, extracted as JSON records. It is stopped half trained on purpose: it makes the mistakes that search and
verification are for. It knows these tasks only.

{trained} A second loss, weighted 0.3, trains what its middle layer predicts through the last norm and head.

## Counting problems

The {figures.problems} held-out problems of `programs/data/counting-500.jsonl`, in the chat form. Samples are drawn at
temperature {TEMPERATURE}; every N takes the first N of the same {COUNTS[-1]}. pass@N: at least one is right.

{search_table(figures)}

## Leaving early

The middle layer's choice against the last layer's, at the {figures.middle.positions:,} tokens of its greedy solutions,
by the middle layer's margin (its largest probability less the second largest):

{agreement_table(figures.middle, "margin")}

## Records

Of {records.notes} held-out notes, {percent(records.constrained)} come out right in all fields with decoding held to the
record's JSON Schema ({kinds}), {percent(records.free)} without it.
The shares of the kinds are what these print:

{table(["kind", "command"], [[kind, f"`{command}`"] for kind, command in RECORD_COMMANDS.items()])}

{_BUILT}
"""


def mini_card(figures: Figures, trained: str) -> str:
    return f"""# counting-mini

A Llama of {figures.parameters["counting-mini"]:,} parameters with the tokenizer of `counting`, to draft for it and to
filter its tokens. It is small and trained for a short time on purpose: it knows the form of every text, and solves
little.

{trained}

## Counting problems

The {figures.problems} held-out problems. In filter decoding it writes the tokens that it is sure of, `counting` the
others:

{small_table(figures)}

## Agreement

At the {figures.mini.positions:,} tokens of `counting`'s greedy solutions it chooses the same token as `counting` at
{percent(figures.mini.same)}; the expected acceptance of its drafts in speculative sampling at temperature 1 is
{percent(figures.mini.acceptance)} a token. By its confidence, the probability of its top token:

{agreement_table(figures.mini, "confidence")}

{_BUILT}
"""


def thinker_card(figures: ThinkingFigures, trained: str) -> str:
    return f"""# counting-thinker

A Llama of {figures.parameters:,} parameters that thinks before it answers counting problems, with the tokenizer of
`counting` and two more tokens, `<think>` and `</think>`. In its thought it works out each step digit by digit and
states its equation, and the answer copies that; it guesses what the thought did not come to. The answer has the form
of `counting`'s, and follows wherever a thought is closed.

The chat template opens the thought. With `enable_thinking=False` it closes it at once. A message's thought is its
`reasoning_content`, or stands between the marks; thoughts before the last user turn are left out.

{trained}

## Counting problems

The {figures.problems} held-out problems, greedily. A thought that comes to its bound is closed there. "Wait" goes on
with a thought that was closed.

{thinking_table(figures)}

Measured by `python -m benchmarks.family.thinking_budget` on the float16 weights in this folder.
"""


def verifier_card(figures: Figures, trained: str) -> str:
    return f"""# counting-prm

A process reward model of {figures.parameters["counting-prm"]:,} parameters for counting problems, in the RLHFlow chat
form: user turn 1 is the problem, a space and step 1; every later user turn is one step; every assistant turn is "+".
The score of a step is the softmax over the logits of the tokens "+" and "-" at the token just before the assistant's
"+". A step is labelled wrong when it, or any step before it, is wrong.

{trained}

## Steps

Over 16 solutions that `counting` sampled at temperature {TEMPERATURE} for each of the {figures.problems} held-out
problems:

{judgement_tables(figures.judgement)}

## What it is good for

{search_table(figures)}

{mark_sentence(figures)}
{_BUILT}
"""


def write_thinker_card(folder: Path, figures: ThinkingFigures, trained: str) -> None:
    """Write README.md into the thinker's folder; `trained` says how it was trained."""
    (folder / "README.md").write_text(thinker_card(figures, trained), encoding="utf-8", newline="\n")


def write_cards(folder: Path, figures: Figures, trained: Mapping[str, str]) -> None:
    """Write README.md into the other three model folders under `folder`; `trained` says how each was trained."""
    for name, card in {"counting": generator_card, "counting-mini": mini_card, "counting-prm": verifier_card}.items():
        text = card(figures, trained[name])
        (folder / name / "README.md").write_text(text, encoding="utf-8", newline="\n")
