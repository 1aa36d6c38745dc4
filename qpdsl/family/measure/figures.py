"""All measurements of one family, together and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.family.measure.agreement import Agreement, Band, agreement, confidence, margin, middle_layer, whole
from qpdsl.family.measure.records import Extracted, extracted
from qpdsl.family.measure.search import COUNTS, Line, Sampled, Searched, beam_search, decode, lines, scored
from qpdsl.family.measure.verifier import Bin, Judgement, judgement, mark
from qpdsl.family.tasks.counting import Problem, evaluation_problems
from qpdsl.family.tasks.records import evaluation_notes
from qpdsl.family.training.progress import note
from qpdsl.family.training.sampling import solve, step_scores

_JUDGED = 16
"""Samples a problem whose steps the verifier is held against the checker on."""


@dataclass(frozen=True)
class Figures:
    """`parameters` by model name; `mark` by N, empty when the solver was not at hand."""

    parameters: dict[str, int]
    problems: int
    levels: dict[int, int]
    search: list[Line]
    judgement: Judgement
    mini: Agreement
    middle: Agreement
    records: Extracted
    mark: dict[int, float]

    def line(self, method: str, n: int) -> Line:
        """Raises StopIteration for a method or N that was not measured."""
        return next(line for line in self.search if line.method.startswith(method) and line.n == n)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Figures:
        data: dict[str, Any] = json.loads(text)
        return Figures(
            parameters=data["parameters"],
            problems=data["problems"],
            levels={int(level): count for level, count in data["levels"].items()},
            search=[Line(**{**line, "by_level": _by_int(line["by_level"])}) for line in data["search"]],
            judgement=Judgement(**{**data["judgement"], "bins": [Bin(**found) for found in data["judgement"]["bins"]]}),
            mini=_agreement(data["mini"]),
            middle=_agreement(data["middle"]),
            records=Extracted(**data["records"]),
            mark=_by_int(data["mark"]),
        )


def _by_int(data: dict[str, float]) -> dict[int, float]:
    return {int(key): value for key, value in data.items()}


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
    chosen, asked = evaluation_problems()[:problems], evaluation_notes()[:notes]
    samples, greedy = decode(str(generator), chosen)
    beam = beam_search(str(generator), str(verifier), chosen)
    note("the verifier's scores")
    prm, llm, small = load(verifier), load(generator), load(mini)
    steps = [_steps(prm, tokenizer, problem, some) for problem, some in zip(chosen, samples, strict=True)]
    samples = scored(samples, [[marks[-1] for marks in some] for some in steps])
    texts = [[sample.text for sample in some[:_JUDGED]] for some in samples]
    judged = judgement(chosen, texts, [some[:_JUDGED] for some in steps])
    marks: dict[int, float] = {}
    if solver is not None:
        note("the solver's mark")
        strong = load(solver)
        for n in COUNTS[:-1]:
            marks[n] = mark(strong, tokenizer, chosen, [some[:n] for some in samples])
    note("agreement with the generator")
    written = _written(llm, tokenizer, [problem.text for problem in chosen])
    mini_agreement = agreement(whole(small), llm, tokenizer, written, confidence)
    middle_agreement = agreement(middle_layer(llm), llm, tokenizer, written, margin)
    note("records")
    return Figures(
        parameters={
            "counting": llm.num_parameters(),
            "counting-mini": small.num_parameters(),
            "counting-prm": prm.num_parameters(),
        },
        problems=len(chosen),
        levels={level: sum(p.level == level for p in chosen) for level in sorted({p.level for p in chosen})},
        search=lines(Searched(chosen, samples, greedy, beam)),
        judgement=judged,
        mini=mini_agreement,
        middle=middle_agreement,
        records=extracted(str(generator), asked),
        mark=marks,
    )


def _steps(
    verifier: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problem: Problem, samples: Sequence[Sampled]
) -> list[list[float]]:
    return step_scores(verifier, tokenizer, [(problem.text, sample.text) for sample in samples])


def _written(
    generator: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]
) -> list[tuple[str, str]]:
    return list(zip(prompts, solve(generator, tokenizer, prompts), strict=True))
