"""The shared tokenizer: exact round trips, single-token digits and marks, an append-only chat template."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from family.training.tokenizer import SPECIAL_TOKENS, VOCABULARY, build_thinking_tokenizer, build_tokenizer
from qpdsl import zoo

BUILT = build_tokenizer()
SHIPPED: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
MESSAGES = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), UNICODE), min_size=1, max_size=5)


def ids_of(text: str) -> list[int]:
    return list(SHIPPED(text)["input_ids"])


@pytest.mark.parametrize("model", zoo.BUILTIN, ids=lambda model: model.name)
def test_every_shipped_tokenizer_is_the_one_the_code_builds(model: zoo.BuiltinModel) -> None:
    shipped = AutoTokenizer.from_pretrained(zoo.path(model.name))
    built = build_thinking_tokenizer(BUILT) if model.name == "zoo/counting-thinker" else BUILT
    assert shipped.get_vocab() == built.get_vocab()
    assert shipped.chat_template == built.chat_template
    for text in ("Mia has 18 apples.\n\n18 + 24 = 42. The answer is 42.", '{"name": "Mia Stone", "age": 34}'):
        assert shipped(text)["input_ids"] == BUILT(text)["input_ids"]


def test_vocabulary_and_special_tokens() -> None:
    assert len(SHIPPED) == VOCABULARY
    assert SHIPPED.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    assert (SHIPPED.pad_token, SHIPPED.eos_token, SHIPPED.bos_token) == ("<|pad|>", "<|end|>", None)


@pytest.mark.parametrize("text", ["+", "-", *"0123456789"])
def test_marks_and_digits_are_single_tokens(text: str) -> None:
    assert len(ids_of(text)) == 1


def test_numbers_are_spelled_digit_by_digit() -> None:
    assert SHIPPED.convert_ids_to_tokens(ids_of("1234")) == ["1", "2", "3", "4"]


@given(UNICODE)
@settings(max_examples=300)
def test_any_text_comes_back_exactly(text: str) -> None:
    assert SHIPPED.decode(ids_of(text)) == text


@given(MESSAGES, st.data())
@settings(max_examples=100)
def test_the_chat_template_only_appends(messages: list[tuple[str, str]], data: st.DataObject) -> None:
    conversation = [{"role": role, "content": content} for role, content in messages]
    cut = data.draw(st.integers(1, len(conversation)))
    conversation[cut:cut] = [{"role": "assistant", "content": data.draw(UNICODE)}]
    shorter = SHIPPED.apply_chat_template(
        conversation[:cut], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    longer = SHIPPED.apply_chat_template(conversation, tokenize=True, return_dict=False)
    assert longer[: len(shorter)] == shorter
