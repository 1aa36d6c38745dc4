"""What the words on the screens mean and the keys do, for whoever asks with `?`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.grammar.ast.stage import STAGES

WORDS: Mapping[str, str] = {
    "now": "how many rows of the input are in the operator now",
    "hot": "rows spent the most time of the last seconds in this operator; of a run that has ended, of all its time",
    "flow": "how many rows it made over the time of the run, the latest at the right",
    "rows/pr.": "the rows that it made for each row of the input that has begun",
    "estimate": "the rows that were expected for a row of the input, and how far off that is; ≤: the most there can be",
    "tok/pr.": "prompt tokens and sampled tokens for each row of the input that has begun",
    "time": "its share of all the time that rows spent in operators",
    "decisions": "what the plan decided in it, as shares of what it counted",
    "had it": "whether a right answer was among the candidates of a row that is wrong, and its place where it was cut",
    "again": "whether the same tokens come again: exact; by what a server repeats; or only from what was recorded",
    "score": "what the row was ranked by at last",
    "decode": "the time in which the model of a `generate` drew tokens",
    "prefill": "the time in which it read prompts",
    "idle": "the time in which no model had anything to compute and nobody computed what it should",
    "KV": "the memory of keys and values: of rows at work, of prompts that may come again, and free",
    "prefix hits": "the share of prompt tokens that were in the cache",
    "preemptions": "how often a sequence gave its memory way to others and was computed again",
    "first token": "how long samples waited for it: half of them at most p50, 99% at most p99",
    "each token": "likewise, from one token to the next",
    "greedy": "the answer without a search: the likeliest token each time",
    "left": "the time until all rows are done: with 95% it lies between these, by how much rows differ in theirs",
    "right": "the share of graded rows that are right, and how far the true share may lie from that, with 95%",
    "interval": "with 95% the true difference lies in it",
    "p-value": "how likely rows would flip at least as unevenly if neither run were better (McNemar's exact test)",
    "first difference": "the first place where the texts of the two rows part",
}
# Operators of a plan that are no stages, or have another name than theirs.
_OPERATORS = {
    "SetContext": "the chat or prompt that models are shown",
    "Repeat": "repeats what is inside it, round by round",
    "TopK": "keeps the best rows",
    "BudgetedArms": "tries one way after the other, as far as the budget goes",
}

KEYS = (
    ("1 2 3 4 5, tab", "the screens"),
    ("↑ ↓ j k g G", "move; page up and down too"),
    ("enter", "go down: an operator's rows, a row's search, a candidate"),
    ("!  w", "the search of the next row that failed, or is wrong"),
    ("v", "what the verifier is worth; esc goes back"),
    ("[ ]  f", "Search: another row; follow the latest"),
    ("x  space  o", "Search: hide pruned, fold, ranking"),
    ("z Z  < >", "Engine: zoom; earlier and later"),
    ("d", "details: of an operator, a row, both rows of Compare"),
    ("r  u", "what rules saved; where the tokens went"),
    ("c  l", "compare with another run; Compare: both plans"),
    ("y", "copy: a text, a path, a prompt, the command that repeats a row"),
    ("/  s  S", "Rows: filter (from every screen), sort, reverse"),
    ("space", "replay: pause and go on (p on Search)"),
    ("← →  , .", "replay: jump, step by one event"),
    ("+ -  ( )", "replay: speed, to the beginning, to the end"),
    ("t  ctrl+p", "theme, all commands"),
    ("n  ?  q", "notes; words and keys; leave"),
)


def rule_text(rules: Mapping[str, Any], name: str) -> str:
    """What a rule does, by the records of `RunStarted.rules`; a trace may hold anything."""
    record = rules.get(name)
    return str(record.get("does", "")) if isinstance(record, dict) else ""


def explained(word: str, rules: Mapping[str, Any]) -> str:
    """What a column, an operator or a rule is."""
    stage = STAGES.get(word.lower())
    usage = "" if stage is None else f"a stage: {stage.usage}"
    return WORDS.get(word) or rule_text(rules, word) or _OPERATORS.get(word) or usage or "an operator of the plan"
