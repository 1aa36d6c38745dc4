"""The figures of one family: all its measurements, together and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from family.measure.agreement import Agreement, Band, agreement, confidence, last_layer, margin, middle_layer
from family.measure.record_accuracy import RecordAccuracy, record_accuracy
from family.measure.search_accuracy import (
    COUNTS,
    MethodAccuracy,
    SampledSolution,
    SearchOutcomes,
    beam_search,
    decode,
    method_accuracies,
    small_model,
    with_scores,
)
from family.measure.verifier_accuracy import Bin, Judgement, judgement, solver_accuracy
from family.tasks.counting import Problem, evaluation_problems
from family.tasks.records import evaluation_notes
from family.training.progress_bar import note
from family.training.transformers_sampling import solve, step_scores

_JUDGED = 16
"""Samples of each problem whose steps the verifier is compared with the checker on."""


@dataclass(frozen=True)
class Figures:
    """`parameters` by model name; `mark` is the solver's accuracy by N, empty where the solver was not available.

    `small` is the mini model's own accuracy, and what it comes to where it writes with the generator.
    """

    parameters: dict[str, int]
    problems: int
    levels: dict[int, int]
    search: list[MethodAccuracy]
    judgement: Judgement
    mini: Agreement
    small: list[MethodAccuracy]
    middle: Agreement
    records: RecordAccuracy
    mark: dict[int, float]

    def accuracy(self, method: str, n: int) -> MethodAccuracy:
        """Of the first method whose name starts so. Raises StopIteration where it was not measured at that N."""
        return next(entry for entry in self.search if entry.method.startswith(method) and entry.n == n)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Figures:
        data: dict[str, Any] = json.loads(text)
        return Figures(
            parameters=data["parameters"],
            problems=data["problems"],
            levels={int(level): count for level, count in data["levels"].items()},
            search=_accuracies(data["search"]),
            judgement=Judgement(
                **{**data["judgement"], "bins": [Bin(**record) for record in data["judgement"]["bins"]]}
            ),
            mini=_agreement(data["mini"]),
            small=_accuracies(data["small"]),
            middle=_agreement(data["middle"]),
            records=RecordAccuracy(**data["records"]),
            mark=_by_int(data["mark"]),
        )


def _by_int(data: dict[str, float]) -> dict[int, float]:
    return {int(key): value for key, value in data.items()}


def _accuracies(data: list[dict[str, Any]]) -> list[MethodAccuracy]:
    return [MethodAccuracy(**{**entry, "by_level": _by_int(entry["by_level"])}) for entry in data]


def _agreement(data: dict[str, Any]) -> Agreement:
    return Agreement(**{**data, "bands": [Band(**band) for band in data["bands"]]})


def load(folder: Path) -> LlamaForCausalLM:
    """A model of the family in float32, to measure."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def measure(
    generator: Path, mini: Path, verifier: Path, solver: Path | None = None, problems: int = 500, notes: int = 300
) -> Figures:
    """Measure the models in these folders on the first of the held-out problems and notes; `solver` gives the mark."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(generator)
    tasks, records = evaluation_problems()[:problems], evaluation_notes()[:notes]
    samples, greedy = decode(str(generator), tasks)
    beam = beam_search(str(generator), str(verifier), tasks)
    note("the verifier's scores")
    prm, llm, draft = load(verifier), load(generator), load(mini)
    scores = [_step_scores(prm, tokenizer, problem, row) for problem, row in zip(tasks, samples, strict=True)]
    samples = with_scores(samples, [[steps[-1] for steps in row] for row in scores])
    texts = [[sample.text for sample in row[:_JUDGED]] for row in samples]
    step_judgement = judgement(tasks, texts, [row[:_JUDGED] for row in scores])
    mark: dict[int, float] = {}
    if solver is not None:
        note("the solver's mark")
        strong = load(solver)
        for n in COUNTS[:-1]:
            mark[n] = solver_accuracy(strong, tokenizer, tasks, [row[:n] for row in samples])
    note("agreement with the generator")
    written = _greedy_texts(llm, tokenizer, [problem.text for problem in tasks])
    mini_agreement = agreement(last_layer(draft), llm, tokenizer, written, confidence)
    middle_agreement = agreement(middle_layer(llm), llm, tokenizer, written, margin)
    note("records")
    return Figures(
        parameters={
            "counting": llm.num_parameters(),
            "counting-mini": draft.num_parameters(),
            "counting-prm": prm.num_parameters(),
        },
        problems=len(tasks),
        levels={
            level: sum(problem.level == level for problem in tasks)
            for level in sorted({problem.level for problem in tasks})
        },
        search=method_accuracies(SearchOutcomes(tasks, samples, greedy, beam)),
        judgement=step_judgement,
        mini=mini_agreement,
        small=small_model(str(generator), str(mini), tasks),
        middle=middle_agreement,
        records=record_accuracy(str(generator), records),
        mark=mark,
    )


def with_mini(figures: Figures, generator: Path, mini: Path) -> Figures:
    """The figures of a family in which only the mini model is another one."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(generator)
    tasks = evaluation_problems()[: figures.problems]
    llm, draft = load(generator), load(mini)
    written = _greedy_texts(llm, tokenizer, [problem.text for problem in tasks])
    return replace(
        figures,
        parameters={**figures.parameters, "counting-mini": draft.num_parameters()},
        mini=agreement(last_layer(draft), llm, tokenizer, written, confidence),
        small=small_model(str(generator), str(mini), tasks),
    )


def _step_scores(
    verifier: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problem: Problem, samples: Sequence[SampledSolution]
) -> list[list[float]]:
    return step_scores(verifier, tokenizer, [(problem.text, sample.text) for sample in samples])


def _greedy_texts(
    generator: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]
) -> list[tuple[str, str]]:
    return list(zip(prompts, solve(generator, tokenizer, prompts), strict=True))
