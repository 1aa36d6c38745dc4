"""A text that continues an encoded one has the tokens and spans that it has by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.text import context
from qpdsl.executor.text.context import Encoded, ResumedEncoder, located


def words(*added: AddedToken, normalizer: normalizers.Normalizer | None = None) -> PreTrainedTokenizerFast:
    """Words begin with ▁, the first of a text too, and letters stand for themselves."""
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", *"▁abx<|> ", "▁a", "ab", "▁ab"])}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("a", "b"), ("▁a", "b")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    if normalizer is not None:
        backend.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_tokens(list(added))
    return tokenizer


TOKENIZERS = {
    "zoo": AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm")),
    "first word": words(AddedToken("<|end|>", normalized=False), AddedToken("<|user|>", normalized=False)),
    "one in another": words(AddedToken("<|end|>", normalized=False), AddedToken("b<|end|>a", normalized=False)),
    "takes space": words(AddedToken("<|end|>", normalized=False, lstrip=True), AddedToken("<|user|>", rstrip=True)),
    "normalized": words(AddedToken("<|end|>", normalized=True), normalizer=normalizers.Prepend("x")),
    "none": words(),
}
PARTS = st.lists(st.sampled_from(["<|end|>", "<|user|>", "a", "b", "ab ", " ", "<|", "|>"]), min_size=1, max_size=5)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(PARTS, min_size=1, max_size=6), other=PARTS)
def test_growing_texts_are_encoded_as_each_by_itself(name: str, parts: list[list[str]], other: list[str]) -> None:
    backend = TOKENIZERS[name].backend_tokenizer
    encoder = ResumedEncoder(TOKENIZERS[name])
    text = ""
    for addition in parts:
        # An encoded text may continue in another way, too.
        for candidate in (text + "".join(other), text + "".join(addition)):
            assert encoder.encode(candidate) == located(backend, candidate)
        text = candidate


def test_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def noted(tokenizer: Tokenizer, text: str) -> Encoded:
        encoded.append(text)
        return located(tokenizer, text)

    monkeypatch.setattr(context, "located", noted)
    encoder = ResumedEncoder(TOKENIZERS["zoo"])
    encoder.encode("<|user|>1 + 1 = 2.<|end|><|assistant|>")
    encoder.encode("<|user|>1 + 1 = 2.<|end|><|assistant|>+<|end|><|user|>2 + 2 = 4.<|end|><|assistant|>")
    assert encoded[1] == "<|assistant|>+<|end|><|user|>2 + 2 = 4.<|end|><|assistant|>"
