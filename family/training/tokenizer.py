"""The tokenizer that every built-in model shares: byte-level BPE, 768 ids, one token a digit.

Any text encodes and decodes back exactly. The chat template only ever appends: the ids of a longer conversation
start with the ids of every shorter one, generation prompt included.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from family.tasks.counting import problems
from family.tasks.records import notes

VOCABULARY = 768
SPECIAL_TOKENS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINK, END_THINK = "<think>", "</think>"
OPEN_THOUGHT, CLOSE_THOUGHT = f"{THINK}\n", f"\n{END_THINK}\n\n"
# As the template of Qwen3 does: a thought is a field of a message, or stands in its content; those before the last user
# turn are left out.
THINKING_TEMPLATE = r"""
{%- set turns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set turns.last_user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' }}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'assistant' %}
        {%- set thought = '' %}
        {%- if message['reasoning_content'] is defined and message['reasoning_content'] is not none %}
            {%- set thought = message['reasoning_content'] %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > turns.last_user and (thought or loop.last) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
            {%- set content = content.lstrip('\n') %}
        {%- endif %}
    {%- endif %}
    {{- content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|><think>\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

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


def build_thinking_tokenizer(base: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """`base` with two more ids, the special tokens around a thought, and a chat template that opens the thought."""
    tokenizer = copy.deepcopy(base)
    marks = [AddedToken(mark, special=True, normalized=False) for mark in (THINK, END_THINK)]
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokenizer.extra_special_tokens, *marks]})
    tokenizer.chat_template = THINKING_TEMPLATE.strip()
    return tokenizer


def _texts(samples: int, seed: int) -> Iterator[str]:
    for problem in islice(problems(seed), samples):
        yield problem.text
        yield problem.solution
    for note in islice(notes(seed), samples // 2):
        yield note.prompt
        yield note.json
