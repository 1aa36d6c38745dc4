"""Beam search over steps on vLLM, as search-and-learn has it: all problems side by side, round by round.

In each round vLLM writes one more step of every beam that goes on, in several ways, and the verifier scores what is
new. vLLM finds the beams' earlier tokens in its prefix cache. The verifier is a process reward model in RLHFlow's
format, whose score is the probability of "+" over "-", or a judge that is shown a rubric and answers with a number from
1 to 5. Search-and-learn sets beams that have ended aside, and a length that cuts a step ends its beam; here, as in the
programs, ended beams stand among the others, and a step that was cut is followed by the next. Two ways to score:

- "uncached": a forward of transformers over the whole text of every candidate, in padded batches of eight;
- "cached": the verifier is on vLLM too and finds the steps before in its prefix cache; a text that was scored for the
  same problem before is not scored again. It is the best that can be written by hand.

A beam that has ended is not scored again in either way. Two ways to draw: vLLM's own, or the noise of qpdsl's engine,
with which both come to the same tokens and so have the same work; what that noise takes is not in the times. It needs
vLLM with its torch and transformers, and of this checkout's dependencies what draws: llvmlite and numpy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from benchmarks.peers.clocks import processor_seconds
from benchmarks.peers.peer import Found, Room
from qpdsl.executor.runtime.instance.candidates import hash_context, noise_key
from qpdsl.executor.text.context import Context

STOP = "\n\n"
TEMPERATURE = 0.8
# As scores are kept: what rounding moves decides nothing.
SCORE_DIGITS = 5
_SCORED_AT_ONCE = 8
_SCALE = "12345"
_BLOCK = 32


@dataclass(frozen=True)
class Beam:
    """A candidate: its text, its token ids behind the prompt, the choices that led to it, and what is known of it."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    finished: bool = False
    score: float = 0.0


@dataclass
class Search:
    """A problem on its way. `known`: the scores of texts seen so far; `candidates` and `duplicates` count them."""

    problem: str
    prompt: list[int]
    beams: list[Beam] = field(default_factory=lambda: [Beam()])
    known: dict[str, float] = field(default_factory=dict)
    candidates: int = 0
    duplicates: int = 0


class SameDraws(AdapterLogitsProcessor):
    """Leaves each row that has a key only the token that qpdsl's engine draws from its logits, by its `sampler`.

    `spent`: the wall and processor seconds that this took.
    """

    sampler: ClassVar[Any] = None
    spent: ClassVar[list[float]] = [0.0, 0.0]

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        key = (params.extra_args or {}).get("key")
        return None if key is None else partial(self._only, torch.tensor([key]), torch.tensor([params.temperature]))

    def _only(
        self, key: torch.Tensor, temperature: torch.Tensor, before: list[int], logits: torch.Tensor
    ) -> torch.Tensor:
        token, _, _ = self.sampler(logits[None], temperature, key, torch.tensor([len(before)]))
        return torch.full_like(logits, float("-inf")).index_fill_(0, token, 0.0)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        start, cpu = time.perf_counter(), time.process_time()
        only = super().apply(logits)
        self.spent[0] += time.perf_counter() - start
        self.spent[1] += time.process_time() - cpu
        return only


class Judge(Protocol):
    """Probabilities of the answers that it may give, after conversations of token ids."""

    def answers(self, conversations: Sequence[list[int]]) -> list[list[float]]: ...


class PlainJudge:
    """transformers, whole texts in padded batches."""

    def __init__(self, folder: str, dtype: str, ids: Sequence[int]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self._ids = list(ids)

    @torch.inference_mode()
    def answers(self, conversations: Sequence[list[int]]) -> list[list[float]]:
        answers: list[list[float]] = []
        for start in range(0, len(conversations), _SCORED_AT_ONCE):
            rows = conversations[start : start + _SCORED_AT_ONCE]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            hidden = self._model.model(input_ids=ids, attention_mask=mask).last_hidden_state
            last = hidden[torch.arange(len(rows)), mask.sum(dim=1) - 1]
            answers += self._model.lm_head(last)[:, self._ids].double().softmax(dim=-1).tolist()
        return answers


class CachedJudge:
    """vLLM, asked for one of the answers."""

    def __init__(self, llm: LLM, ids: Sequence[int]) -> None:
        self._llm = llm
        self._ids = list(ids)
        self._params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=self._ids, logprobs=len(self._ids), detokenize=False
        )

    def answers(self, conversations: Sequence[list[int]]) -> list[list[float]]:
        prompts = [{"prompt_token_ids": ids} for ids in conversations]
        outputs = self._llm.generate(prompts, self._params, use_tqdm=False)
        firsts = [output.outputs[0].logprobs[0] for output in outputs]
        return [[math.exp(first[token].logprob) for token in self._ids] for first in firsts]


class VllmLoop:
    """Both models, loaded.

    `options`: "verifier", a folder; "rubric" for a judge, None for a process reward model; "way", "cached" or
    "uncached"; "width", "expand", "depth", and "step_tokens", which None leaves to the context.
    """

    def __init__(self, generator: str, dtype: str, room: Room, options: dict[str, Any]) -> None:
        torch.set_num_threads(room.threads)
        self._options = options
        self._context = room.context
        self._llm = _llm(generator, dtype, room)
        self._words = AutoTokenizer.from_pretrained(generator)
        verifier = options["verifier"]
        self._marks = AutoTokenizer.from_pretrained(verifier)
        self._rubric: str | None = options["rubric"]
        ids = [self._marks.convert_tokens_to_ids(answer) for answer in ("+-" if self._rubric is None else _SCALE)]
        self._cached = options["way"] == "cached"
        self._engines = [self._llm]
        if self._cached and verifier != generator:
            self._engines.append(_llm(verifier, dtype, room))
        # As it loads vLLM looks through all modules that are there, and fails at llvmlite's.
        from qpdsl.executor.kernels.llvm.sample import RowSampler

        SameDraws.sampler = RowSampler(self._llm.model_config.get_vocab_size())
        self._judge: Judge
        if self._cached:
            self._judge = CachedJudge(self._engines[-1], ids)
        else:
            self._judge = PlainJudge(verifier, dtype, ids)

    def search(self, problems: Sequence[str], own_draws: bool = False) -> Found:
        """Every cache is empty when it begins."""
        for engine in self._engines:
            engine.reset_prefix_cache()
        SameDraws.spent[:] = 0.0, 0.0
        start, cpu = time.perf_counter(), processor_seconds()
        searches = [Search(problem, self._prompt(problem)) for problem in problems]
        sampled = 0
        for number in range(self._options["depth"]):
            sampled += self._grow(searches, None if own_draws else number)
            if all(beam.finished for search in searches for beam in search.beams):
                break
        answers = [max(search.beams, key=lambda beam: beam.score).text for search in searches]
        return Found(
            time.perf_counter() - start - SameDraws.spent[0],
            processor_seconds() - cpu - SameDraws.spent[1],
            answers,
            sampled,
            sum(search.candidates for search in searches),
            sum(search.duplicates for search in searches),
        )

    def _prompt(self, problem: str) -> list[int]:
        ids: list[int] = self._words.apply_chat_template(
            [{"role": "user", "content": problem}], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return ids

    def _grow(self, searches: Sequence[Search], number: int | None) -> int:
        """One more step of all that go on, scored, and the best kept. Returns how many tokens were sampled.

        `number`: which round it is, where the draws are qpdsl's.
        """
        going = [(search, beam) for search in searches for beam in search.beams if not beam.finished]
        expand = self._options["expand"]
        params = SamplingParams(
            n=expand,
            temperature=TEMPERATURE,
            max_tokens=self._options["step_tokens"],
            stop=[STOP],
            include_stop_str_in_output=True,
        )
        several: SamplingParams | list[SamplingParams] = params
        if number is not None:
            several = [
                _keyed(params, search, number, (*beam.path, way)) for search, beam in going for way in range(expand)
            ]
            going = [one for one in going for _ in range(expand)]
        outputs = self._llm.generate(
            [{"prompt_token_ids": [*search.prompt, *beam.tokens]} for search, beam in going], several, use_tqdm=False
        )
        grown: dict[int, list[Beam]] = {}
        samples = [sample for output in outputs for sample in output.outputs]
        written = iter(samples)
        for search in searches:
            # A beam that has ended stands where it stood: among equal scores the first are kept.
            grown[id(search)] = [
                longer
                for beam in search.beams
                for longer in (
                    [beam]
                    if beam.finished
                    else [self._longer(search, beam, way, next(written)) for way in range(expand)]
                )
            ]
        judged = self._score(searches, grown)
        for search in searches:
            rows = [replace(beam, score=search.known[beam.text]) for beam in grown[id(search)]]
            search.beams = sorted(rows, key=lambda beam: -beam.score)[: self._options["width"]]
        return judged + sum(len(sample.token_ids) for sample in samples)

    def _longer(self, search: Search, beam: Beam, way: int, sample: Any) -> Beam:
        tokens = (*beam.tokens, *(token for token in sample.token_ids if token != self._words.eos_token_id))
        full = len(search.prompt) + len(tokens) >= self._context - 1
        ended = full or not (sample.stop_reason == STOP or sample.finish_reason == "length")
        return Beam(beam.text + sample.text, tokens, (*beam.path, way), ended)

    def _score(self, searches: Sequence[Search], grown: dict[int, list[Beam]]) -> int:
        """Makes the scores of all new candidates known. Returns how many tokens a judge answered with: one each."""
        asked: list[tuple[Search, str]] = []
        for search in searches:
            seen = set(search.known)
            ended = {id(beam) for beam in search.beams}
            for beam in grown[id(search)]:
                if id(beam) in ended:
                    continue
                search.candidates += 1
                search.duplicates += beam.text in seen
                if not self._cached or beam.text not in seen:
                    asked.append((search, beam.text))
                seen.add(beam.text)
        answers = self._judge.answers([self._conversation(search.problem, text) for search, text in asked])
        for (search, text), likely in zip(asked, answers, strict=True):
            search.known[text] = (
                round(likely[0], SCORE_DIGITS) if self._rubric is None else float(1 + likely.index(max(likely)))
            )
        return 0 if self._rubric is None else len(asked)

    def _conversation(self, problem: str, text: str) -> list[int]:
        """The tokens up to where the verifier judges the last step, or all that there is."""
        turns = []
        if self._rubric is not None:
            asked = f"{problem}\n\n{text}\n\n{self._rubric}\n\nAnswer with one whole number from 1 to {_SCALE[-1]}."
            turns.append({"role": "user", "content": asked})
        else:
            for number, step in enumerate(step for step in text.split(STOP) if step.strip()):
                turns.append({"role": "user", "content": f"{problem} {step}" if number == 0 else step})
                turns.append({"role": "assistant", "content": "+"})
            # A text of nothing is judged as the problem alone.
            turns = turns[:-1] or [{"role": "user", "content": problem}]
        ids: list[int] = self._marks.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return ids[-self._context + 1 :]


def _keyed(params: SamplingParams, search: Search, number: int, path: tuple[int, ...]) -> SamplingParams:
    """The parameters of one sample that is drawn as qpdsl draws it, with seed 0 in the program's only `generate`."""
    keyed = params.clone()
    key = noise_key(0, hash_context(Context(turns=(("user", search.problem),))), 0, (number,), path)
    keyed.n, keyed.extra_args = 1, {"key": key - (1 << 64) if key >> 63 else key}
    return keyed


def _llm(folder: str, dtype: str, room: Room) -> LLM:
    return LLM(
        model=folder,
        dtype=dtype,
        block_size=_BLOCK,
        max_model_len=room.context,
        max_num_seqs=room.slots,
        enable_prefix_caching=True,
        # Log-probabilities over the two signs alone.
        logprobs_mode="processed_logprobs",
        logits_processors=[SameDraws],
        disable_log_stats=True,
    )
