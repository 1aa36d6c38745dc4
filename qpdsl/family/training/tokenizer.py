"""The tokenizer that every built-in model shares: byte-level BPE, 768 ids, one token a digit.

Any text encodes and decodes back exactly. The chat template only ever appends: the ids of a longer conversation
start with the ids of every shorter one, generation prompt included.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from qpdsl.family.tasks.counting import problems
from qpdsl.family.tasks.records import notes

VOCABULARY = 768
SPECIAL_TOKENS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Pieces that merges never cross. Operators keep their spaces and a full stop keeps the blank line after it, so " + "
# and ".\n\n" become one token each; lower-case words may join into phrases (" more than"), names stand alone.
_PIECES = Regex(r" ?[+\-*=] ?|[.?!]\n\n| ?\p{Lu}\p{L}*|(?: ?\p{Ll}+)+(?: \z)?| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+")


def build_tokenizer(samples: int = 20_000, seed: int = 7) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `samples` training problems with solutions, and half as many notes with records."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(samples, seed), trainer)
    # The task's text runs out of merges a few short of the round size.
    spare = VOCABULARY - core.get_vocab_size()
    core.add_special_tokens([AddedToken(f"<|spare_{n}|>", special=True, normalized=False) for n in range(spare)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _texts(samples: int, seed: int) -> Iterator[str]:
    for problem in islice(problems(seed), samples):
        yield problem.text
        yield problem.solution
    for note in islice(notes(seed), samples // 2):
        yield note.prompt
        yield note.json
