"""A tokenizer without transformers renders, encodes and decodes as transformers' own, or leaves it to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from benchmarks.chat_templates import tokenizer_with
from qpdsl.executor.text.chat_template import ContextError, render
from qpdsl.executor.text.quick_tokenizer import QuickTokenizer, TokenizerOutline
from qpdsl.executor.text.text_tokenizer import TextTokenizer

HERE = Path(__file__).parent
TEMPLATES = {file.stem: file.read_text("utf-8") for file in HERE.glob("*_templates/*.jinja")} | {
    "loops": "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.content | trim }}|{% endfor %}",
    "scopes": "{% set ns = namespace(n=0) %}{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}"
    "{% endgeneration %}{% set ns.n = ns.n + 1 %}{{ x is defined }}{{ ns.n }}{% endfor %}",
    "JSON": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ dict(a=1)['a'] }}{{ bos_token }}",
    "dates": "{{ strftime_now('%Y') }}{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
    "refusals": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    "{{ m.content }}{% endfor %}",
    "forbidden": "{{ messages.append(1) }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "hidden names": "{% set ns = namespace(_n=0) %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "no template": "{% for m in messages %}",
}
USER: Mapping[str, Any] = {"role": "user", "content": " Is <b>3</b> × 4 12?\n"}
SAID: Mapping[str, Any] = {"role": "assistant", "content": "Yes.\n\n"}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
CALL = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": "1"}}}
TURNS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "more": [USER, SAID, {"role": "user", "content": ""}],
    "thought": [USER, {**SAID, "reasoning_content": "3 + 3"}, USER],
    "thinking": [USER, {**SAID, "thinking": "3 + 3"}],
    "calls": [USER, {**SAID, "tool_calls": [CALL]}, {"role": "tool", "content": "3", "tool_call_id": "c1"}],
    "no content": [USER, {"role": "assistant", "content": None}],
}
WAYS: Sequence[Mapping[str, Any]] = (
    {},
    {"to_go_on": False},
    {"within_last": True},
    {"arguments": {"enable_thinking": False, "tools": [TOOL]}},
)


def quick(tokenizer: PreTrainedTokenizerFast) -> QuickTokenizer:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    outline = TokenizerOutline.of(tokenizer, backend)
    assert outline.is_quick
    return QuickTokenizer(outline, backend, lambda: tokenizer)


def rendered(tokenizer: TextTokenizer, turns: Sequence[Mapping[str, Any]], way: Mapping[str, Any]) -> str:
    try:
        return render(tokenizer, turns, **way)
    except ContextError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_rendered_as_transformers_renders_them(name: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[name])
    own = quick(tokenizer)
    for turns in TURNS.values():
        for way in WAYS:
            assert rendered(own, turns, way) == rendered(tokenizer, turns, way)


def test_what_is_usual_needs_no_transformers() -> None:
    def original() -> PreTrainedTokenizerFast:
        raise AssertionError("the original is made")

    tokenizer = tokenizer_with(TEMPLATES["fields"])
    own = quick(tokenizer)
    alone = QuickTokenizer(TokenizerOutline.of(tokenizer, own.backend_tokenizer), own.backend_tokenizer, original)
    for turns in ("one", "system", "more", "thought", "thinking", "calls"):
        for way in WAYS:
            assert "original" not in rendered(alone, TURNS[turns], way)
    refusing = quick(tokenizer_with(TEMPLATES["refusals"]))
    assert rendered(refusing, TURNS["system"], {}).endswith("no system turns")
    with pytest.raises(AssertionError, match="original"):
        alone.convert_tokens_to_ids("no such token")


@pytest.mark.parametrize("text", ["", "a", " Is it 2 , 3 ? do n't", "Zoë 🙂\n\n", "<think>x</think><|end|>"])
def test_texts_and_tokens_are_the_same(text: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES["fields"])
    own = quick(tokenizer)
    for special in (True, False):
        ids = own.encode(text, add_special_tokens=special)
        assert ids == tokenizer.encode(text, add_special_tokens=special)
        assert own.decode(ids, skip_special_tokens=special) == tokenizer.decode(ids, skip_special_tokens=special)
    assert own.get_vocab() == tokenizer.get_vocab()
    assert [*own.get_added_vocab().items()] == [*tokenizer.get_added_vocab().items()]
    assert own.convert_ids_to_tokens(ids) == tokenizer.convert_ids_to_tokens(ids)
    for name in ("bos_token", "eos_token_id", "special_tokens_map", "vocab_size"):
        assert getattr(own, name) == getattr(tokenizer, name), name


def test_a_tokenizer_that_transformers_changes_is_its_own() -> None:
    tokenizer = tokenizer_with(TEMPLATES["fields"])
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    tokenizer.add_tokens(["<new>"])
    assert not TokenizerOutline.of(tokenizer, backend).is_quick
    assert not TokenizerOutline.of(tokenizer, None).is_quick
