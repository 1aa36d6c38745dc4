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
    "score": "what a candidate was ranked by at last, and so the row that it answers",
    "candidate": "a step or a whole text that was written for the row, below the step that it continues",
    "round": "in which round of its loop it was written",
    "tok": "how many tokens were sampled for it",
    "visits": "how often the tree search came by it",
    "value": "what the tree search has found it to be worth, in the mean of its visits",
    "prior": "its probability among its siblings before any visit, by which PUCT weighs going there",
    "the answer": "the answer of the row was read from it",
    "finished": "it is whole, and its round kept it or nothing compared it",
    "kept": "its round kept it, and it went on",
    "not judged yet": "nothing has decided about it so far",
    "pruned": "its round did not keep it",
    "agreed": "it voted for the answer that won",
    "outvoted": "it voted for another answer than the one that won",
    "no vote": "no answer was found in it, so it had no vote",
    "a duplicate": "another one has the same text, or the same answer",
    "joined": "its text went into one that was made of several",
    "given up": "it was left unwritten: what followed was decided without it",
    "unfinished": "it was left before its end",
    "failed": "it stood here where the row failed",
    "a copy": "the row above it once more, made to go on in several ways",
    "aside": "it was looked at by `peek`, `ask` or a called program, for the row above it",
    "×4": "so many candidates are equal and have nothing below them; space shows each",
    "goes on ×2": "so many copies of it went on",
    "lost here": "a right answer that was dropped here; its place says which width would have kept it",
    "went wrong here": "the first step of the answer whose score is below one half",
    "margin at the cut": "by how much the last that was kept was ahead of the first that was not",
    "right answers": "how many finished candidates have the right answer",
    "log p": "the sum of the log-probabilities of its tokens",
    "coloured tokens": "the model was unsure of them (below 0.9); italics: something else than its draw wrote them",
    "AUC": "the chance that a right answer, of any row, has a higher score than a wrong one: 0.5 is that of a coin",
    "within a row": "the same, of right and wrong answers of one row: what a search can choose by",
    "ties": "pairs of a right and a wrong answer with equal scores",
    "calibration": "how far scores that are shares lie from the share that is right, in the mean",
    "misled": "rows in which a wrong answer had a higher score than every right one",
    "pass@k": "the chance that one of k samples is right: what a perfect verifier would come to",
    "taken": "the share of rows whose answer is right",
    "right at": "the highest score of a right answer of the row",
    "wrong at": "the highest score of a wrong one",
    "wider cut": "how many right answers that were dropped a wider cut would have kept",
    "decode": "the time in which the model of a `generate` drew tokens",
    "prefill": "the time in which it read prompts",
    "idle": "the time in which no model had anything to compute and nobody computed what it should",
    "verifier": "the time in which models of a `score` read texts",
    "waits for server": "the time in which requests were at servers and nothing here worked",
    "Python": "the time between two steps in which rows were at work: operators, functions, tools",
    "KV": "the memory of keys and values: of rows at work, of prompts that may come again, and free",
    "prefix hits": "the share of prompt tokens that were in the cache",
    "batch": "how many sequences a step computes at once, and how many wait for their turn",
    "process": "the memory of the whole process; of it other: without weights, keys and values, activations",
    "KV leased": "the memory for keys and values that is taken from the system; of it empty: where no token is",
    "head": "the time of a step for what is read off the last layer: logits, draws, log-probabilities",
    "in flight": "requests that are at the server now, and how many there may be",
    "sent again": "requests that failed in passing, or that the server had refused for now",
    "prompt cache": "the share of prompt tokens that the server had read before",
    "preemptions": "how often a sequence gave its memory way to others and was computed again",
    "first token": "how long samples waited for it: half of them at most p50, 99% at most p99",
    "each token": "likewise, from one token to the next",
    "greedy": "the answer without a search: the likeliest token each time",
    "left": "the time until all rows are done: with 95% it lies between these, by how much rows differ in theirs",
    "right": "the share of graded rows that are right, and how far the true share may lie from that, with 95%",
    "gained": "the row is right here and wrong there",
    "lost": "the row is wrong here and right there",
    "other answer": "the answers differ, and both are right or both wrong",
    "points": "the share of right answers here less that there, of 100, over the rows that both have",
    "interval": "with 95% the true difference lies in it",
    "p-value": "how likely rows would flip at least as unevenly if neither run were better (McNemar's exact test)",
    "first difference": "the first place where the texts of the two rows part",
    "◆": "no other cell is as right for fewer tokens, or more right for as many",
    "tokens a row": "the tokens that were sampled for a row of it, with those that another cell had drawn",
    "shared": "the share of its tokens that another cell had drawn",
    "prompt": "the tokens of the request",
    "sampled": "the tokens that were sampled for it, of all candidates",
    "p50": "half of the requests took at most so long; 95% at most p95, 99% at most p99",
}
# Operators of a plan that are no stages, or more than one.
_OPERATORS = {
    "SetContext": "the chat or prompt that models are shown",
    "BudgetedArms": "tries one way after the other, as far as the budget goes",
}

# Those of all screens and of single ones that are no commands of the palette.
KEYS = (
    ("1 2 3 4 5, tab", "the screens"),
    ("↑ ↓ j k g G", "move; page up and down too"),
    ("enter", "go down: an operator's rows, a row's search, a candidate"),
    ("[ ]  f", "Search: another row; follow the latest"),
    ("x  space  o", "Search: hide pruned, fold, ranking"),
    ("z Z  < >", "Engine: zoom; earlier and later"),
    ("d", "details: of an operator, a row, both rows of Compare"),
    ("l", "Compare: both plans"),
    ("s  S", "Rows: sort, reverse"),
    ("← →", "replay: jump"),
    ("ctrl+p", "all commands"),
)


def rule_text(rules: Mapping[str, Any], name: str) -> str:
    """What a rule does, by the records of `RunStarted.rules`; a trace may hold anything."""
    record = rules.get(name)
    return str(record.get("does", "")) if isinstance(record, dict) else ""


def explained(word: str, rules: Mapping[str, Any]) -> str:
    """What a column, an operator or a rule is."""
    told = WORDS.get(word) or rule_text(rules, word) or _OPERATORS.get(word) or _stage_text(word)
    return told or "an operator of the plan"


def _stage_text(operator: str) -> str:
    """How the stage of an operator is written, and what it does: the first sentence of its documentation."""
    stage = next((stage for stage in STAGES.values() if stage.operator == operator), None)
    return "" if stage is None else " ".join((stage.__doc__ or stage.usage).split()).partition(". ")[0]
