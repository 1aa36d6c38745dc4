"""Text as tokens: bytes and marks of turns, which become messages again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.remote.dialects.dialect import Messages
from qpdsl.executor.remote.text_tokenizer import (
    BYTES,
    EOS,
    WIDTH,
    is_text,
    messages_of,
    text_of,
    text_tokenizer,
    tokens_of,
)
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.executor.text.detokenizer import Detokenizer

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS)
def test_tokens_are_the_bytes_of_a_text(text: str) -> None:
    tokenizer = text_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tuple(ids) == tokens_of(text) == tuple(text.encode())
    assert text_of(ids) == text == tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)
    assert is_text(tokenizer) and len(tokenizer.get_vocab()) == WIDTH


@given(TEXTS, TEXTS, TEXTS)
def test_a_conversation_is_found_again_whatever_is_said_in_it(system: str, asked: str, begun: str) -> None:
    # A name of a mark in a message is text like any other.
    turns = (("system", system), ("user", f"<|qpdsl user|>{asked}"), ("assistant", "1"), ("user", asked))
    ids = encode(text_tokenizer(), Context(turns=turns))
    assert messages_of(ids) == Messages(turns)
    assert messages_of(ids + tokens_of(begun)) == Messages(turns, begun)
    plain = encode(text_tokenizer(), Context(prompt=((f"x{asked}", False),)))
    assert messages_of(plain) is None and text_of(plain) == f"x{asked}"


def test_a_role_that_no_server_knows_is_refused() -> None:
    with pytest.raises(ContextError, match="there is no role critic"):
        encode(text_tokenizer(), Context(turns=(("critic", "x"),)))


def test_characters_come_whole_and_constraints_hold_bytes() -> None:
    detokenizer, pending, pieces = Detokenizer(text_tokenizer().backend_tokenizer), (), []
    for token in tokens_of("é😀"):
        pending = (*pending, token)
        pieces.append(piece := detokenizer.piece((), pending))
        pending = () if piece else pending
    assert pieces == ["", "é", "", "", "", "😀"]
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    for text, any_spacing, fits in (('{"a": 1}', False, True), ('{"a":1}', False, False), ('{ "a":1\n}', True, True)):
        constrainer = Constrainer(text_tokenizer(), WIDTH, {EOS}, any_spacing=any_spacing)
        assert (constrainer.masks("json_schema", schema)().admits(tokens_of(text)) == len(text)) is fits
    assert BYTES < EOS < WIDTH
