"""Words in messages: the known word that was likely meant, and lists of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span

# What options are called elsewhere, where no spelling leads from there to here.
CALLED_ELSEWHERE = {
    **dict.fromkeys(("samples", "num_samples", "n_samples", "num_return_sequences", "num_completions", "best_of"), "n"),
    **dict.fromkeys(("max_new_tokens", "max_length", "max_completion_tokens"), "max_tokens"),
    **dict.fromkeys(("thinking_budget", "budget_tokens", "reasoning_effort", "enable_thinking"), "think"),
    **dict.fromkeys(("aggregate", "aggregation", "agg"), "reduce"),
    **dict.fromkeys(("early_stop", "early_stopping"), "decided"),
    **dict.fromkeys(("stop_sequences", "stop_strings"), "stop"),
    **dict.fromkeys(("mcts", "uct"), "puct"),
    "temp": "temperature",
    "weights": "weight",
    "num_simulations": "simulations",
}


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a slip of, None where none is near."""
    names = list(known)
    if CALLED_ELSEWHERE.get(word) in names:
        return CALLED_ELSEWHERE[word]
    folded = {name.lower(): name for name in reversed(names)}
    if word.lower() in folded:
        return folded[word.lower()]
    # Of a text that is so much longer no name is near, however long it takes to see that.
    if len(word) > 3 * max(map(len, folded), default=0):
        return None
    # Swapped letters of a three-letter name are still only two thirds alike.
    matches = get_close_matches(word.lower(), folded, n=3, cutoff=0.65)
    # Of names that are equally near, the one that was declared first.
    order = {name.lower(): index for index, name in reversed([*enumerate(names)])}
    best = min(matches, key=lambda match: (-_likeness(word.lower(), match), order[match]), default=None)
    return None if best is None else folded[best]


def meant(near: str | None, span: Span) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic: a known word in the place of one that it is near to; nothing without one."""
    return {"help": f"did you mean `{near}`?", "edit": Edit(span, near)} if near else {}


def did_you_mean(word: str, known: Iterable[str], span: Span) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic, with the known word nearest to `word`; nothing where none is near."""
    return meant(closest(word, known), span)


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """`a`, `b` or `c`: the words in backticks."""
    return enumerated([f"`{word}`" for word in words], last=last)


def enumerated(phrases: Sequence[str], *, last: str = "or") -> str:
    """a, b or c."""
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} {last} {phrases[-1]}"


def _likeness(word: str, name: str) -> float:
    return SequenceMatcher(None, name, word).ratio()
