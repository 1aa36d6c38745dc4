"""Stop strings over real tokenizations: the text ends right after the first one, whatever tokens it is made of."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.text.stop import Stops, StopWatch

ZOO = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))


def sentencepiece() -> PreTrainedTokenizerFast:
    """A small tokenizer in Llama 2's layout: words begin with ▁, and unknown bytes fall back to byte tokens."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefgh.\n",
        "▁a",
        "▁b",
        "ab",
        ".\n",
        "\n\n",
        "▁\n",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), (".", "\n"), ("\n", "\n"), ("▁", "\n")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TOKENIZERS = {"byte-level": ZOO, "sentencepiece": sentencepiece()}


def stopped(tokenizer: PreTrainedTokenizerFast, tokens: list[int], stop: str) -> tuple[str, int] | None:
    """What is left of the tokens' text, and how many tokens were looked at; None where nothing stops them."""
    model = TextModel("m", tokenizer, frozenset(), 256, len(tokenizer))
    watch = StopWatch(model.detokenizer, Stops((stop,)))
    for count, token in enumerate(tokens, 1):
        if watch.push(token):
            assert watch.cut is not None
            kept = tuple(tokens[: watch.cut.tokens])
            return model.decode(kept + (model.encode_after(kept, watch.cut.tail) if watch.cut.tail else ())), count
    return None


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_text_ends_after_the_first_stop_string(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    model = TextModel("m", tokenizer, frozenset(), 256, len(tokenizer))
    text = data.draw(st.text("ab.\n é", min_size=1, max_size=30))
    stop = data.draw(st.sampled_from(["\n", "\n\n", ".", "ab", "a\n", "é", ".\n\n"]))
    tokens = model.encode(text)
    whole = model.decode(tuple(tokens))
    result = stopped(tokenizer, tokens, stop)
    if stop in whole:
        assert result is not None and result[0] == whole[: whole.index(stop) + len(stop)]
    else:
        assert result is None


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_a_stop_that_is_dropped_leaves_the_text_before_it_and_none_of_it_is_shown(
    name: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[name]
    model = TextModel("m", tokenizer, frozenset(), 256, len(tokenizer))
    tokens = model.encode(data.draw(st.text("ab.\n é", min_size=1, max_size=30)))
    stop = data.draw(st.sampled_from(["\n", "\n\n", ".", "ab", "a\n", "é", ".\n\n"]))
    least = data.draw(st.sampled_from([0, 0, 3, 6]))
    by = {"patterns": (re.escape(stop),)} if data.draw(st.booleans()) else {"texts": (stop,)}
    pieces: list[str] = []
    watch = StopWatch(model.detokenizer, Stops(**by, drop=True, least=least), pieces.append)
    count = next((count for count, token in enumerate(tokens, 1) if watch.push(token)), None)
    # Half a letter is none yet.
    whole, early = model.decode(tuple(tokens)), len(model.decode(tuple(tokens[:least])).rstrip("\ufffd"))
    if count is None:
        watch.flush()
        assert "".join(pieces) == whole and not (stop in whole and not least)
        return
    assert watch.cut is not None and count > least
    kept = tuple(tokens[: watch.cut.tokens])
    text = model.decode(kept + (model.encode_after(kept, watch.cut.tail) if watch.cut.tail else ()))
    assert text == "".join(pieces) and whole.startswith(text + stop) and len(text + stop) > early
    assert least or text == whole[: whole.index(stop)]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_samples_that_share_a_detokenizer_have_the_text_that_each_has_alone(name: str, data: st.DataObject) -> None:
    model = TextModel("m", TOKENIZERS[name], frozenset(), 256, len(TOKENIZERS[name]))
    samples = data.draw(
        st.lists(st.text("ab \n é漢", min_size=1, max_size=12).map(model.encode), min_size=1, max_size=3)
    )
    texts: list[list[str]] = [[] for _ in samples]
    watches = [StopWatch(model.detokenizer, None, pieces.append) for pieces in texts]
    for index in range(max(map(len, samples))):
        for watch, tokens in zip(watches, samples, strict=True):
            if index < len(tokens):
                assert not watch.push(tokens[index])
    assert ["".join(pieces) for pieces in texts] == [model.decode(tuple(tokens)) for tokens in samples]


@given(tokens=st.lists(st.integers(1, 256), max_size=40))
def test_bytes_that_are_no_text_are_survived(tokens: list[int]) -> None:
    # Tokens 1 to 256 of the small tokenizer are the single bytes, so most sequences are not UTF-8.
    result = stopped(TOKENIZERS["sentencepiece"], tokens, "a")
    assert result is None or result[0].endswith("a")
