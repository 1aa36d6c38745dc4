"""Beam search over steps as people write it today: one problem at a time, `generate` of transformers for the steps, and
a forward of the whole text for every score.

It is what `programs/beam_search.qp` says, with the same models in float32. Candidates are drawn side by side and scored
in padded batches of eight, as search-and-learn does. Nothing is carried over from a round to the next, neither the
generator's KV nor the verifier's. With `noise` the draws are those of qpdsl, token for token, so that the answers can
be held against each other; that is not how people write it, and it is not timed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qpdsl import zoo
from qpdsl.executor.engine.step.sampler import sample
from qpdsl.executor.requests.request import SamplingParams
from qpdsl.executor.runtime.instance.candidates import hash_context, noise_key
from qpdsl.executor.text.context import Context

STOP = "\n\n"
TEMPERATURE = 0.8
SCORED_AT_ONCE = 8
ANSWER = re.compile(r"The answer is (-?\d+)")


@dataclass(frozen=True)
class Beam:
    """A candidate: its text, its token ids behind the prompt, the choices that led to it, and what is known of it."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    finished: bool = False
    score: float = 0.0


class SameNoise(LogitsProcessor):
    """Draws as qpdsl does: logits over the temperature plus the noise of each row's key, the largest wins."""

    def __init__(self, keys: Sequence[int], start: int) -> None:
        self._keys = list(keys)
        self._start = start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        position = input_ids.shape[1] - self._start
        params = [SamplingParams(TEMPERATURE)] * len(self._keys)
        drawn = sample(scores.float(), params, self._keys, [position] * len(self._keys)).tokens
        only = torch.full_like(scores, float("-inf"))
        return only.scatter_(1, drawn[:, None], 0.0)  # type: ignore[return-value]


class Loop:
    """Both models and their tokenizers, loaded as anybody would."""

    def __init__(self, width: int = 4, expand: int = 4, depth: int = 40) -> None:
        self.width, self.expand, self.depth = width, expand, depth
        self.llm, self.words = _load("zoo/counting")
        self.prm, self.marks = _load("zoo/counting-prm")
        self.signs = [self.marks.convert_tokens_to_ids(sign) for sign in "+-"]
        self.limit = int(self.llm.config.max_position_embeddings)

    def answer(self, problem: str, seed: int = 0, noise: bool = False) -> str | None:
        """What the search comes to. With `noise` it draws with that of the program's `generate`."""
        prompt = self.words.apply_chat_template(
            [{"role": "user", "content": problem}], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        digest = hash_context(Context(turns=(("user", problem),)))
        beams = [Beam()]
        for round_ in range(self.depth):
            if all(beam.finished for beam in beams):
                break
            keys: list[int] | None = None
            going = [beam for beam in beams if not beam.finished]
            if noise:
                paths = [(*beam.path, index) for beam in going for index in range(self.expand)]
                keys = [noise_key(seed, digest, 0, (round_,), path) for path in paths]
            grown = iter(self._grown(list(prompt), going, keys))
            # A finished beam stands where it stood.
            beams = [
                successor
                for beam in beams
                for successor in ([beam] if beam.finished else [next(grown) for _ in range(self.expand)])
            ]
            scores = self._scores(problem, [beam.text for beam in beams])
            beams = [
                Beam(beam.text, beam.tokens, beam.path, beam.finished, score)
                for beam, score in zip(beams, scores, strict=True)
            ]
            beams = sorted(beams, key=lambda beam: -beam.score)[: self.width]
        answer = ANSWER.search(max(beams, key=lambda beam: beam.score).text)
        return answer.group(1) if answer else None

    @torch.inference_mode()
    def _grown(self, prompt: list[int], going: Sequence[Beam], keys: list[int] | None) -> list[Beam]:
        rows = [prompt + list(beam.tokens) for beam in going]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        noise = LogitsProcessorList([] if keys is None else [SameNoise(keys, longest)])
        drawing = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0} if keys is None else {"do_sample": False}
        if keys is not None:
            # Greedy decoding returns one sequence a row.
            ids, mask = (tensor.repeat_interleave(self.expand, dim=0) for tensor in (ids, mask))
        out = self.llm.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=self.limit - longest,
            stop_strings=[STOP],
            tokenizer=self.words,
            num_return_sequences=self.expand if keys is None else 1,
            pad_token_id=0,
            logits_processor=noise,
            **drawing,
        )
        return [
            self._beam(going[row // self.expand], row % self.expand, ids_[longest:].tolist())
            for row, ids_ in enumerate(out)
        ]

    def _beam(self, before: Beam, index: int, drawn: list[int]) -> Beam:
        eos = self.llm.generation_config.eos_token_id
        ended = eos in drawn
        # What follows the end of a row is padding, also of one that stopped before others did.
        step = self.words.decode(drawn[: drawn.index(eos)] if ended else drawn, skip_special_tokens=True)
        stopped = STOP in step
        tokens = [token for token in (drawn[: drawn.index(eos)] if ended else drawn) if token != 0]
        return Beam(before.text + step, before.tokens + tuple(tokens), (*before.path, index), not stopped)

    @torch.inference_mode()
    def _scores(self, problem: str, texts: Sequence[str]) -> list[float]:
        laid_out = [self._conversation(problem, text) for text in texts]
        scores: list[float] = []
        for start in range(0, len(laid_out), SCORED_AT_ONCE):
            rows = laid_out[start : start + SCORED_AT_ONCE]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            logits = self.prm(input_ids=ids, attention_mask=mask).logits
            for row, tokens in enumerate(rows):
                two = logits[row, len(tokens) - 1, self.signs].double().softmax(dim=-1)
                scores.append(round(two[0].item(), 5))
        return scores

    def _conversation(self, problem: str, text: str) -> list[int]:
        """The tokens up to where the verifier judges the last step (RLHFlow's format)."""
        steps = [step for step in text.split(STOP) if step.strip()]
        turns = []
        for number, step in enumerate(steps):
            turns.append({"role": "user", "content": f"{problem} {step}" if number == 0 else step})
            turns.append({"role": "assistant", "content": "+"})
        ids: list[int] = self.marks.apply_chat_template(
            turns[:-1], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return ids


def _load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    folder = zoo.path(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)
