"""Train `counting-thinker`: the lower three layers of `counting`, which learn to work results out in thoughts.

A row is a problem, a thought (`family.tasks.thoughts`) and the right solution. Thoughts are cut anywhere and closed
there, so that an answer follows whatever the thought came to; some are left out; some are told to "Wait". The model is
to learn to think, and not to guess better than `counting`: results that the thought did not begin to work out carry no
loss, but in a tenth of the rows, and nor do the words of others and forced closes. In the last fifth of the training,
most thoughts are whole and only read, so that the model learns to copy their results.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.tasks.counting import Problem, extract_answer, problems
from family.tasks.thoughts import WAITS, ThoughtPiece, solution_steps, thought_lines
from family.training.batches import IGNORED, POOL, CompletionRow, pooled_batches
from family.training.generator import mini_losses
from family.training.llama import ATTENTION
from family.training.loop import Recipe, TrainingSettings, train
from family.training.tokenizer import CLOSE_THOUGHT, END_THINK
from family.training.transformers_sampling import continue_rows

_LAYERS, _ROWS = 3, 16
_PLAIN, _CUT, _WAIT, _WAIT_AT_END, _SECOND_TURN, _GUESSING = 0.1, 0.45, 0.3, 0.3, 0.08, 0.1
_LATE, _READ = 0.8, 0.6
_ANSWER_ROOM, _THOUGHT_ROOM = 128, 400

Tokens = list[tuple[int, bool]]
"""Token ids, each with whether it is learned."""


@dataclass(frozen=True)
class _Thought:
    """The tokens of a thought, the results that it worked out, if in part, and whether the model closes it itself."""

    tokens: Tokens
    worked: int
    closes: bool


class ThoughtRows:
    """Training rows; the same problem and random state give the same row."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def _tokens(self, *pieces: ThoughtPiece) -> Tokens:
        return [(token, piece.learned) for piece in pieces for token in self._tokenizer(piece.text)["input_ids"]]

    def row(self, problem: Problem, earlier: Problem, rng: random.Random, read: bool = False) -> CompletionRow:
        """A row of one problem; now and then it stands in the second turn, after an `earlier` one.

        Where the thought is only `read`, it is whole and carries no loss.
        """
        messages = [{"role": "user", "content": problem.text}]
        if rng.random() < _SECOND_TURN:
            turns = (("user", earlier.text), ("assistant", earlier.solution))
            messages = [*({"role": role, "content": text} for role, text in turns), *messages]
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        thought = self._thought(problem, rng, read)
        solution = solution_steps(problem, thought.worked, guessing=rng.random() < _GUESSING)
        completion = [
            *thought.tokens,
            *self._tokens(ThoughtPiece(CLOSE_THOUGHT, thought.closes)),
            *self._tokens(*chain.from_iterable(solution), ThoughtPiece(self._tokenizer.eos_token)),
        ]
        ids = [*prompt, *(token for token, _ in completion)]
        targets = [token if learned else IGNORED for token, learned in completion]
        return CompletionRow(ids[:-1], [*[IGNORED] * (len(prompt) - 1), *targets])

    def _thought(self, problem: Problem, rng: random.Random, read: bool) -> _Thought:
        """A thought that may be left out, told to wait, or cut."""
        if not read and rng.random() < _PLAIN:
            return _Thought([], 0, closes=False)
        steps = [[self._tokens(ThoughtPiece(line)) for line in step] for step in thought_lines(problem)]
        lines = list(chain.from_iterable(steps))
        tokens, ends = _joined(lines)
        if rng.random() < _WAIT:
            place = len(tokens) if rng.random() < _WAIT_AT_END else rng.randrange(len(tokens))
            done = _standing(ends, place)
            word = rng.choice(WAITS)
            told = ThoughtPiece(word, learned=False), ThoughtPiece(", "[len(word) - len(word.rstrip(", ")) :])
            tokens = [*tokens[:place], *self._tokens(*told)]
            again, ends_again = _joined(lines[done:] or steps[-1])
            ends = [*ends[:done], *(len(tokens) + end for end in ends_again)]
            tokens += again
        cut = rng.randrange(len(tokens)) if not read and rng.random() < _CUT else None
        done = _standing(ends, len(tokens) if cut is None else cut)
        firsts = accumulate(map(len, steps), initial=0)
        worked = sum(first + 2 <= done for first in islice(firsts, len(steps)))
        tokens = [(token, learned and not read) for token, learned in tokens[:cut]]
        return _Thought(tokens, worked, closes=cut is None and not read)


def _joined(lines: Sequence[Tokens]) -> tuple[Tokens, list[int]]:
    """The tokens of all lines, and the places where each one's own have come to an end."""
    return list(chain.from_iterable(lines)), [end - 1 for end in accumulate(map(len, lines))]


def _standing(ends: Sequence[int], place: int) -> int:
    """How many lines stand in the tokens before `place`."""
    return sum(end <= place for end in ends)


def grow(generator: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The generator's lower layers, with the tokenizer's new ids. The generator is used up."""
    generator.model.layers = generator.model.layers[:_LAYERS]
    generator.config.num_hidden_layers = _LAYERS
    torch.manual_seed(0)
    generator.resize_token_embeddings(len(tokenizer))
    generator.set_attn_implementation(ATTENTION)
    return generator.train()


def solve_thinking(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    budget: int | None,
    waits: Sequence[tuple[str, int | None]] = (),
) -> list[str]:
    """A greedy answer to each user turn, after a thought of at most `budget` tokens, which is closed there.

    Each of `waits` goes on with a thought that has ended, however it did: a text, and the bound on what follows it.
    """
    end = int(tokenizer.convert_tokens_to_ids(END_THINK))
    rows: list[list[int]] = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    newline, *_ = close = tokenizer(CLOSE_THOUGHT)["input_ids"]
    for text, bound in [("", budget), *waits]:
        rows = [[*row, *tokenizer(text)["input_ids"]] for row in rows]
        room = _THOUGHT_ROOM if bound is None else bound
        thoughts = continue_rows(model, rows, room, end) if room else [[] for _ in rows]
        rows = [[*row, *_unclosed(new, newline, end)] for row, new in zip(rows, thoughts, strict=True)]
    answers = continue_rows(model, [[*row, *close] for row in rows], _ANSWER_ROOM, int(tokenizer.eos_token_id))
    return [str(text) for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]


def _unclosed(thought: list[int], newline: int, end: int) -> list[int]:
    if thought[-1:] != [end]:
        return thought
    return thought[:-2] if thought[-2:-1] == [newline] else thought[:-1]


def train_thinker(
    tokenizer: PreTrainedTokenizerFast,
    generator: LlamaForCausalLM,
    steps: int,
    checkpoint: Path,
    settings: TrainingSettings,
) -> LlamaForCausalLM:
    """Train the thinker from the generator's weights on fresh problems."""
    model = grow(generator, tokenizer)
    rows, held_out = ThoughtRows(tokenizer), list(islice(problems(900, "held-out"), 100))

    def rows_of(pool: int) -> list[CompletionRow]:
        rng = random.Random(f"thoughts {settings.seed} {pool}")
        fresh = list(islice(problems(settings.seed * 1_000_003 + pool), _ROWS * POOL))
        late = pool * POOL >= _LATE * steps
        return [
            rows.row(problem, fresh[index - 1], rng, read=late and rng.random() < _READ)
            for index, problem in enumerate(fresh)
        ]

    def right(budget: int | None) -> float:
        # The attention of the training knows no cache.
        model.set_attn_implementation("sdpa")
        answers = solve_thinking(model, tokenizer, [problem.text for problem in held_out], budget)
        model.set_attn_implementation(ATTENTION)
        pairs = zip(held_out, answers, strict=True)
        return sum(extract_answer(answer) == problem.answer for problem, answer in pairs) / len(held_out)

    recipe = Recipe(
        name="thinker",
        model=model,
        batches=lambda first: pooled_batches(rows_of, int(tokenizer.pad_token_id or 0), settings.seed, first, _ROWS),
        losses=mini_losses,
        loss_names=("loss",),
        evaluate=lambda step: {"no thought": right(0), "thought": right(None)},
        evaluate_every=250,
        half=False,
    )
    train(recipe, steps, checkpoint, settings)
    return model
