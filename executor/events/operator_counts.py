"""What operators count beside rows and tokens (see `Usage`), in words and with units, for whoever shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class CountName(NamedTuple):
    """What is counted, and in what; `of` names the count that it is a part of, where it is part of one."""

    words: str
    unit: str
    of: str | None = None


COUNTS: Mapping[str, CountName] = {
    "going": CountName("rows that went on", "rows"),
    "context": CountName("their contexts", "tokens"),
    "samples": CountName("samples", "samples"),
    "longest": CountName("longest samples, together", "tokens"),
    "draws": CountName("drawn", "tokens"),
    "rounds": CountName("forwards for them", "forwards"),
    "forced": CountName("forced by a constraint", "tokens"),
    "thought_tokens": CountName("of thoughts", "tokens"),
    "given_up": CountName("given up", "samples"),
    "thoughts_given_up": CountName("thoughts given up", "thoughts"),
    "thought_tokens_given_up": CountName("of them", "tokens", "thought_tokens"),
    "under_bar": CountName("ended as unsure", "samples", "samples"),
    "near_ties": CountName("near ties", "tokens"),
    "unfinished": CountName("left before their end", "rows"),
    "unscored": CountName("without a score", "rows"),
    "texts": CountName("texts judged", "texts"),
    "texts_known": CountName("judged before", "texts", "texts"),
    "text_tokens": CountName("their length", "tokens"),
    "first_tokens": CountName("their first steps", "tokens", "text_tokens"),
    "new_tokens": CountName("steps new to the verifier", "tokens", "text_tokens"),
    "steps": CountName("steps judged", "steps"),
    "steps_known": CountName("steps known before", "steps", "steps"),
    "shared_scores": CountName("scores of other rows used", "steps"),
    "shared_samples": CountName("samples of other rows used", "samples"),
    "saved_tokens": CountName("saved by that", "tokens"),
    "unused_prompt": CountName("prompts that ran ahead for nothing", "tokens"),
    "failed_prompt": CountName("prompts of failed requests", "tokens"),
    "unused_sampled": CountName("sampled ahead for nothing", "tokens"),
    "drafted": CountName("drafted", "tokens"),
    "accepted": CountName("drafts accepted", "tokens", "drafted"),
    "would_drafted": CountName("n-grams would draft", "tokens"),
    "would_rounds": CountName("n-grams would need", "forwards"),
    "would_draws": CountName("drawn without a draft", "tokens"),
    "exits": CountName("left the model early", "tokens"),
    "refined": CountName("went on at the exit", "tokens"),
    "late": CountName("finished after later ones", "tokens"),
    "skipped": CountName("layers spared", "layers"),
    "full": CountName("without the exit, by the router", "tokens"),
    "shadowed": CountName("shadowed draws", "tokens"),
    "differed": CountName("would differ", "tokens", "shadowed"),
    "dense_steps": CountName("with the whole head", "forwards"),
    "rows_steps": CountName("with rows of the head", "forwards"),
    "union_steps": CountName("with rows that any needs", "forwards"),
    "filter_samples": CountName("by two models", "samples"),
    "filter_alone": CountName("by the small model alone", "samples", "filter_samples"),
    "filter_draws": CountName("drawn by the small model", "tokens"),
    "filter_sure": CountName("of them stood", "tokens", "filter_draws"),
    "large_draws": CountName("drawn by the large model", "tokens"),
    "large_tokens": CountName("read by it for that", "tokens"),
    "contrast_draws": CountName("drawn by two models", "tokens"),
    "contrast_alone": CountName("with one plausible id", "tokens", "contrast_draws"),
    "expansions": CountName("expansions", "rows"),
    "rollouts": CountName("rolled out", "rows"),
    "requests": CountName("requests", "requests"),
    "retries": CountName("sent again", "requests", "requests"),
    "replayed": CountName("replayed", "requests"),
    "server_cached": CountName("cached at servers", "tokens"),
    "cost_millionths": CountName("cost", "millionths"),
    "saved_calls": CountName("calls saved", "requests"),
    "beyond_tokens": CountName("written past stops", "tokens"),
    "beyond_used": CountName("of them used", "tokens", "beyond_tokens"),
    "answers_boxed": CountName("answers in a box", "texts"),
    "answers_stated": CountName("answers stated", "texts"),
    "answers_marked": CountName("answers marked", "texts"),
    "answers_none": CountName("texts without an answer", "texts"),
    "tool_calls": CountName("tools called", "calls"),
    "tool_kept": CountName("calls known before", "calls"),
    "tool_errors": CountName("errors of tools", "calls"),
}
# Counts by a number or a way that stands in the name.
_FAMILIES = (
    (re.compile(r"allowed_(\d+)"), "masks that allowed {} ids", "tokens", "draws"),
    (re.compile(r"flush_(\d+)"), "requests in batches of {}", "requests", None),
    (re.compile(r"(\w+)_ahead"), "{} ahead of time", "samples", None),
    (re.compile(r"(\w+)_ahead_used"), "of them used", "samples", "{}_ahead"),
    (re.compile(r"way_(\d+)"), "tried by way {}", "rows", None),
    (re.compile(r"shadowed_([\d.]+)"), "shadowed, sure to {}", "tokens", "shadowed"),
    (re.compile(r"differed_([\d.]+)"), "would differ, sure to {}", "tokens", "shadowed_{}"),
    (re.compile(r"(\w+)_drafted"), "drafted by {}", "tokens", None),
    (re.compile(r"(\w+)_accepted"), "accepted of {}", "tokens", "{}_drafted"),
    (re.compile(r"(\w+)_rejected"), "rejected of {}", "tokens", "{}_drafted"),
    (re.compile(r"(\w+)_draws"), "drawn beside {}", "tokens", None),
    (re.compile(r"(\w+)_rounds"), "forwards with {}", "forwards", None),
)


def count_name(name: str) -> CountName | None:
    """What a count is called; None for one of a newer version."""
    if name in COUNTS:
        return COUNTS[name]
    for pattern, words, unit, of in _FAMILIES:
        if (found := pattern.fullmatch(name)) is not None:
            which = found[1]
            return CountName(words.format(which), unit, None if of is None else of.format(which))
    return None


def told_counts(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """All counts that are not 0 as words and figures, in a fixed order; those without words as they are named."""
    order = {name: place for place, name in enumerate(COUNTS)}
    for name in sorted(counts, key=lambda name: (order.get(name, len(order)), len(name), name)):
        value = counts[name]
        if not value:
            continue
        words, unit, of = count_name(name) or CountName(name.replace("_", " "), "", None)
        if unit == "millionths":
            yield words, f"{value / 1e6:,.6f}".rstrip("0")
            continue
        unit = unit.removesuffix("s") if value == 1 else unit
        whole = counts.get(of, 0) if of is not None else 0
        yield words, f"{value:,} {unit}".rstrip() + (f"  {value / whole:.1%}" if whole else "")
