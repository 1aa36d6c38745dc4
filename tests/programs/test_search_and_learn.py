"""The `sal_` programs against search-and-learn's own loops, written out over plain transformers.

The loops follow `sal/search/*.py` and `sal/models/reward_models.py` of huggingface/search-and-learn: beams that are
copied, pruned and completed by hand, the whole text scored from scratch, an empty last step and all. What is ours in
them is the noise: each beam carries the path that the program's row would have, for the key of its samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.engine.step.sampler import sample
from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.requests.request import SamplingParams
from qpdsl.executor.runtime.instance.candidates import hash_context, noise_key
from qpdsl.executor.text.context import Context
from tests.support.executor.programs import arguments, compiled, run_all, shipped, texts

STOP = "\n\n"


@cache
def loaded(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    folder = zoo.path(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@dataclass
class Beam:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    path: Path = ()
    ended: bool = False
    completed: bool = False
    pruned: bool = False
    scores: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """`aggregate_scores(…, "last")`, rounded as ours are, so that a rounding error decides nothing."""
        return round(self.scores[-1], 5)


@dataclass
class Search:
    """One problem: the key of its context in the noise."""

    problem: str
    digest: bytes

    @classmethod
    def of(cls, problem: str) -> Search:
        return cls(problem, hash_context(Context(turns=(("user", problem),))))

    @torch.inference_mode()
    def go_on(self, beam: Beam, index: int, ordinal: int, rounds: Rounds, *, stop: bool, temperature: float) -> Beam:
        """One continuation, up to and with the stop string, or to the end."""
        model, tokenizer = loaded("zoo/counting")
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": self.problem}], add_generation_prompt=True, return_dict=False
        )
        eos = model.generation_config.eos_token_id
        made = replace(beam, tokens=list(beam.tokens), path=(*beam.path, index))
        key = noise_key(0, self.digest, ordinal, rounds, made.path)
        start, drawn, cache = len(beam.text), 0, DynamicCache(config=model.config)
        while len(prompt) + len(made.tokens) < model.config.max_position_embeddings:
            unread = (prompt + made.tokens)[cache.get_seq_length() :]
            logits = model(torch.tensor([unread]), past_key_values=cache).logits[:, -1].float()
            token = int(sample(logits, [SamplingParams(temperature)], [key], [drawn]).tokens[0])
            drawn += 1
            if token in (eos if isinstance(eos, list) else [eos]):
                made.ended = True
                return made
            made.tokens.append(token)
            made.text = tokenizer.decode(made.tokens, skip_special_tokens=True)
            if stop and STOP in made.text[start:]:
                return made
        made.ended = True
        return made

    @torch.inference_mode()
    def step_scores(self, text: str) -> list[float]:
        """RLHFFlow: a forward for every step, of which an empty last one is one."""
        model, tokenizer = loaded("zoo/counting-prm")
        signs = [tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in "+-"]
        conversation: list[dict[str, str]] = []
        scores = []
        for index, step in enumerate(text.split(STOP)):
            conversation.append({"role": "user", "content": f"{self.problem} {step}" if index == 0 else step})
            ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
            logits = model(torch.tensor([ids])).logits[0, -1, signs]
            scores.append(logits.softmax(dim=-1)[0].item())
            conversation.append({"role": "assistant", "content": "+"})
        return scores


def argmax(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda index: scores[index])


def best_of_n(search: Search, n: int) -> list[Beam]:
    beams = [search.go_on(Beam(), index, 0, (), stop=False, temperature=0.8) for index in range(n)]
    for beam in beams:
        beam.scores = search.step_scores(beam.text)
    return beams


def beam_search(search: Search, n: int, beam_width: int, iterations: int) -> list[Beam]:
    active = [Beam(path=(index,)) for index in range(n)]
    completed: list[Beam] = []
    for iteration in range(iterations):
        last = iteration == iterations - 1
        active = [beam for beam in active if not beam.pruned]
        if iteration:
            copies = [0] * len(active)
            tiled = []
            for place in range(n):
                which = place % len(active)
                tiled.append(replace(active[which], path=(*active[which].path, 1, copies[which])))
                copies[which] += 1
            active = tiled
        rounds = () if last else (iteration,)
        active = [search.go_on(beam, 0, int(last), rounds, stop=not last, temperature=0.8) for beam in active]
        for beam in active:
            beam.scores = search.step_scores(beam.text)
            if beam.ended:
                beam.completed = True
                completed.append(beam)
        active = [beam for beam in active if not beam.completed]
        if not active:
            break
        top = sorted(range(len(active)), key=lambda index: -active[index].score)[: n // beam_width]
        for index, beam in enumerate(active):
            beam.pruned = index not in top
    return completed[:n]


def dvts(search: Search, n: int, beam_width: int, iterations: int) -> list[Beam]:
    trees = [Beam(path=(index,)) for index in range(n // beam_width)]
    candidates: dict[int, list[Beam]] = {}
    for iteration in range(iterations):
        last = iteration == iterations - 1
        rounds = () if last else (iteration,)
        for number, tree in enumerate(trees):
            if tree.pruned:
                continue
            made = [
                search.go_on(tree, index, 2 if last else 0, rounds, stop=not last, temperature=0.8)
                for index in range(beam_width)
            ]
            for beam in made:
                seen = beam
                if not last and not beam.ended:
                    seen = search.go_on(beam, 0, 1, rounds, stop=True, temperature=0.0)
                beam.scores = search.step_scores(seen.text)
            candidates[number] = made
            best = made[argmax([beam.score for beam in made])]
            trees[number] = replace(best, pruned=best.ended or "boxed{" in best.text)
        if all(tree.pruned for tree in trees):
            break
    return [beam for number in range(len(trees)) for beam in candidates[number]]


def completions(name: str, problems: list[str], **given: int) -> list[list[tuple[str, float]]]:
    """The rows that a shipped program chooses from, with their scores."""
    text = files("qpdsl.programs").joinpath(f"{name}.qp").read_text(encoding="utf-8")
    plan = compiled(text[: text.index("  best by score")] + "}\n")
    results = run_all(plan, [arguments(plan, problem=problem, **given) for problem in problems])
    assert [result.error for result in results] == [None] * len(problems)
    return [[(str(row.columns["text"]), row.columns["score"]) for row in result.rows] for result in results]  # type: ignore[misc]


def check(found: list[tuple[str, float]], expected: list[Beam]) -> None:
    assert [text for text, _ in found] == [beam.text for beam in expected]
    assert [score for _, score in found] == pytest.approx([beam.scores[-1] for beam in expected], abs=3e-5)


def test_best_of_n() -> None:
    problems = texts(1)
    rows = completions("sal_best_of_n", problems, n=4)
    for problem, found in zip(problems, rows, strict=True):
        check(found, best_of_n(Search.of(problem), 4))


@pytest.mark.parametrize("depth", [2, 8])
def test_beam_search(depth: int) -> None:
    problems = texts(2 if depth > 2 else 1)
    given = {"width": 2, "expand": 2, "depth": depth}
    rows = completions("sal_beam_search", problems, **given)
    for problem, found in zip(problems, rows, strict=True):
        check(found, beam_search(Search.of(problem), 4, 2, depth))


@pytest.mark.parametrize("depth", [2, 8])
def test_dvts(depth: int) -> None:
    problems = texts(2 if depth > 2 else 1)
    given = {"subtrees": 2, "expand": 2, "depth": depth}
    rows = completions("sal_dvts", problems, **given)
    for problem, found in zip(problems, rows, strict=True):
        check(found, dvts(Search.of(problem), 4, 2, depth))


def test_the_prediction_is_the_first_of_the_best() -> None:
    problems = texts(2)
    rows = completions("sal_beam_search", problems, width=2, expand=2, depth=6)
    plan = shipped("sal_beam_search")
    given = [arguments(plan, problem=problem, width=2, expand=2, depth=6) for problem in problems]
    for result, found in zip(run_all(plan, given), rows, strict=True):
        assert result.rows[0].columns["text"] == found[argmax([score for _, score in found])][0]


def test_only_the_programs_of_search_and_learn_read_an_empty_last_step() -> None:
    scored = 'model prm = "zoo/counting-prm"\nmodel llm = "zoo/counting"\n'
    body = 'chat user=q\n generate llm stop="\\n\\n" temperature=0\n score prm\n return score\n}'
    sound = compiled(scored + "program p(q: text) -> float {\n " + body)
    raw = compiled(scored + "program p(q: text) -> float like search_and_learn {\n " + body)
    problem = texts(1)[0]
    (ours,), (theirs,) = run_all(sound, [{"q": problem}]), run_all(raw, [{"q": problem}])
    text = str(ours.rows[0].columns["text"])
    search = Search(problem, b"")
    assert text.endswith(STOP)
    assert ours.value == pytest.approx(search.step_scores(text.removesuffix(STOP))[-1], abs=3e-5)
    assert theirs.value == pytest.approx(search.step_scores(text)[-1], abs=3e-5)
