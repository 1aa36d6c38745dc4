"""What cannot run on the paged engine is refused when it is loaded, with a reason.

Here are models that differ from a sound one in one thing; `tests/promises/test_equal_or_refused.py` has whole families.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, PreTrainedModel

from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.errors import EngineError, UnsupportedModel
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.families import Family, families, tiny
from tests.support.executor.models import VOCABULARY, paged, random_model

PIECES = "a text that is read in pieces gets other logits than a whole one"


class Part(torch.nn.Module):
    """A part of a model with something done to its result."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.altered(self.part(states))

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Convolution(Part):
    """Each token also gets a little of the one before it in the forward."""

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        return states + 0.1 * states.roll(1, dims=1) * (torch.arange(states.shape[1]) > 0)[:, None]


class Numbered(Part):
    """Tokens are numbered from the beginning of the forward."""

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        return states + 0.1 * torch.sin(torch.arange(states.shape[1]))[:, None]


class Counting(Part):
    """A buffer counts forwards; what it adds is too small to be seen in a logit."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__(part)
        self.register_buffer("forwards", torch.zeros(1))

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return states + 1e-9 * self.forwards


class Remembering(Part):
    """The last state stays behind in an attribute."""

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        self.last_state = states[:, -1]
        return states


class Fixed(Part):
    """It runs on one number of tokens only."""

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(1, 64, -1)


class Failing(Part):
    """It does not run."""

    def altered(self, states: torch.Tensor) -> torch.Tensor:
        raise KeyError("weights")


def with_mlp(kind: type[Part]) -> Callable[[PreTrainedModel], None]:
    def change(model: PreTrainedModel) -> None:
        layer = model.model.layers[1]
        layer.mlp = kind(layer.mlp)

    return change


def with_embedding(model: PreTrainedModel) -> None:
    model.model.embed_tokens = Numbered(model.model.embed_tokens)
    model.get_input_embeddings = lambda: model.model.embed_tokens.part  # type: ignore[method-assign]


def with_argument(model: PreTrainedModel) -> None:
    attention = model.model.layers[1].self_attn
    attention.forward = partial(attention.forward, position_bias=torch.zeros(1))


def with_a_call_left_out(model: PreTrainedModel) -> None:
    attention = model.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (attention.o_proj(hidden_states), None)


def with_two_calls(model: PreTrainedModel) -> None:
    attention = model.model.layers[1].self_attn
    once = attention.forward

    def forward(hidden_states: torch.Tensor, **arguments: object) -> object:
        # Newer releases of transformers call the cache `cache`.
        cached = {name: None for name in ("cache", "past_key_values") if name in arguments}
        once(hidden_states, **{**arguments, **cached})
        return once(hidden_states, **arguments)

    attention.forward = forward


def with_logits(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[PreTrainedModel], None]:
    def changed(model: PreTrainedModel) -> None:
        original = model.forward

        def forward(*arguments: object, **named: object) -> object:
            output = original(*arguments, **named)
            output.logits = change(output.logits)
            return output

        model.forward = forward  # type: ignore[method-assign]

    return changed


CHANGES: dict[str, tuple[Callable[[PreTrainedModel], None], str]] = {
    "convolution": (with_mlp(Convolution), PIECES),
    "positions": (with_embedding, PIECES),
    "buffer": (with_mlp(Counting), r"each forward changes what the next one computes with \(`\S*forwards`\)"),
    "attribute": (with_mlp(Remembering), r"each forward changes what the next one computes with \(`\S*last_state`\)"),
    "fixed": (with_mlp(Fixed), r"its layers fail on a batch of pieces of texts \(RuntimeError"),
    "failing": (with_mlp(Failing), r"its own forward fails \(KeyError: 'weights'\)"),
    "argument": (with_argument, r"what paged attention does not know \(position_bias\)"),
    "left out": (with_a_call_left_out, r"not all of its layers attend .* \(1 of 2 do\)"),
    "twice": (with_two_calls, r"its layers attend more than once in a forward \(layer 1: 2 times\)"),
    "shifted": (with_logits(lambda logits: logits + 5.0), "its logits are more than a projection"),
    # Small logits do not show it.
    "capped": (with_logits(lambda logits: torch.tanh(logits / 1000) * 1000), "its logits are more than a projection"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_does_more_is_refused(change: str) -> None:
    model = random_model("llama")
    alter, reason = CHANGES[change]
    alter(model)
    with pytest.raises(UnsupportedModel, match=reason):
        PagedModel(model)


@pytest.mark.parametrize("name", ["falcon_h1", "zaya", "bart", "marian", "gpt_bigcode", "mistral", "deepseek_v3"])
def test_what_is_refused_does_not_depend_on_the_type(name: str) -> None:
    """Where rounding is coarse, logits alone would not tell."""
    family = families()[name]
    model = tiny(family).to(torch.bfloat16)
    if family.refused is None:
        PagedModel(model)
    else:
        with pytest.raises(UnsupportedModel, match=family.refused):
            PagedModel(model)


def test_a_window_beyond_the_trial_must_be_told_too() -> None:
    with pytest.raises(UnsupportedModel, match="do not tell attention of their window of 200 tokens"):
        PagedModel(tiny(Family("moshi", {"sliding_window": 200})))
    told = PagedModel(tiny(families()["phimoe (with a wide window)"]), native=False)
    assert [call.window for call in told.found.calls] == [200, 200]


def test_a_text_ends_where_long_factors_would_begin() -> None:
    model = PagedModel(tiny(families()["phi3 (with longrope)"]), native=False)
    assert model.max_positions == 128
    assert model.notes == (
        "a text has at most 128 tokens here, of 512: with one more, the positions of the whole would change (longrope)",
    )
    assert PagedModel(tiny(families()["phi3"]), native=False).notes == ()


def test_a_token_takes_what_its_layers_keep() -> None:
    def layout(name: str) -> KVLayout:
        return PagedModel(tiny(families()[name]), native=False).layout

    # A latent vector of 16 numbers and a rotated key of 8 in each of two layers.
    assert layout("deepseek_v3").token_bytes == 2 * (16 + 8) * 4
    # Keys 12 wide and values 8, of two heads in one layer and of four in the other.
    assert layout("mimo_v2_flash").token_bytes == (2 + 4) * (12 + 8) * 4
    # Four of six layers keep their own, by turns two heads of 12 and of 24.
    assert layout("gemma4_text").token_bytes == 2 * (2 * 2 * 12 + 2 * 2 * 24) * 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [("deepseek_v3", "one latent vector, kept in full"), ("mimo_v2_flash", "takes equal pairs")],
)
def test_what_cannot_be_kept_in_fewer_bits_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        PagedModel(tiny(families()[name]), kv_type="int8")


@pytest.mark.parametrize("name", ["deepseek_v3", "llama4_text", "bloom"])
def test_what_kernels_of_a_device_do_not_do_is_refused_there(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="no kernels for that on a GPU yet"):
        PagedModel(tiny(families()[name]), kernels=True)


def test_a_scaled_head_is_reproduced() -> None:
    config = GraniteConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        logits_scaling=4.0,
        initializer_range=0.3,
    )
    PagedModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    with pytest.raises(EngineError, match="256 tokens, m takes 255"):
        engine.submit("m", GenerateRequest(tuple([1] * 256), (0,), SamplingParams(), 1))


def test_a_context_that_has_another_name_has_its_length_too() -> None:
    assert PagedModel(tiny(families()["whisper"])).max_positions == 448


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    with pytest.raises(EngineError, match=f"token {VOCABULARY} is none of the {VOCABULARY}"):
        engine.submit("m", GenerateRequest((1, VOCABULARY), (0,), SamplingParams(), 1))


def test_a_soft_cap_counts_where_the_model_attends_by_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(families()["gemma2"])
    # As in transformers 5.17.
    monkeypatch.setattr(type(model), "_supports_sdpa", True)
    model.set_attn_implementation("sdpa")
    assert PagedModel(model).implementation == "compiled layers"
