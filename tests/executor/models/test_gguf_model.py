"""Models in GGUF files are the models that they were made from, and what would be another model is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.models.gguf_model import built
from tests.support.executor.gguf_files import family_model, floats, write_gguf

pytest.importorskip("gguf", reason="the files are written with the package gguf")
TYPES = ("Q8_0", "Q4_1", "Q5_0", "F16", "BF16", "Q4_0", "F32")
# Those whose files are written here; those of other families are llama.cpp's own (`test_gguf_families.py`).
WRITTEN = ("gemma", "gemma2", "gemma3", "glm4", "granite", "llama", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
# Those whose files transformers reads itself; of the others it knows no architecture, or gives them none of its own.
BY_TRANSFORMERS = ("gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3")


def configuration(gguf: GGUFModel) -> PretrainedConfig:
    settings = dict(gguf.config)
    config = CONFIG_MAPPING[settings.pop("model_type")](**settings)
    config._attn_implementation = "eager"
    return config


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(2 * 40).view(2, 40) * 7 % 768
    found: torch.Tensor = model(input_ids=ids).logits
    return found


@pytest.mark.parametrize("architecture", WRITTEN)
def test_a_file_gives_the_logits_of_its_model(architecture: str, tmp_path: Path) -> None:
    model = family_model(architecture)
    write_gguf(tmp_path / "m.gguf", architecture, model, TYPES)
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    expected = logits(model)
    kept = built(gguf, configuration(gguf), None, "cpu")
    assert torch.equal(logits(kept), expected)
    dense = built(gguf, configuration(gguf), torch.float32, "cpu")
    assert torch.equal(logits(dense), expected)
    assert kept.dtype == torch.float32
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in dense.state_dict().items())


@pytest.mark.parametrize("architecture", BY_TRANSFORMERS)
def test_weights_are_those_that_transformers_reads(architecture: str, tmp_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    file = tmp_path / "m.gguf"
    write_gguf(file, architecture, family_model(architecture), TYPES)
    gguf = GGUFModel.of(file)
    model = built(gguf, configuration(gguf), torch.float32, "cpu")
    own = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)
    weights = {name: values for name, values in model.state_dict().items() if name in own["tensors"]}
    assert len(weights) == len(gguf.tensors)
    assert all(torch.equal(values, own["tensors"][name]) for name, values in weights.items())
    for name, value in own["config"].items():
        if name in gguf.config and name not in ("model_type", "rope_parameters"):
            assert gguf.config[name] == value, name


def test_weights_on_another_device_or_of_another_type_are_plain(tmp_path: Path) -> None:
    model = family_model("llama", tie_word_embeddings=True)
    write_gguf(tmp_path / "m.gguf", "llama", model, TYPES)
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    half = built(gguf, configuration(gguf), torch.bfloat16, "cpu")
    assert half.dtype == torch.bfloat16 and half.lm_head.weight is half.model.embed_tokens.weight
    assert {type(module) for module in half.modules() if hasattr(module, "in_features")} == {torch.nn.Linear}
    assert all(torch.equal(value, model.state_dict()[name].bfloat16()) for name, value in half.state_dict().items())


def llama3_factors(dim: int, theta: float, factor: float) -> list[float]:
    """What `generate_extra_tensors` of llama.cpp's `conversion/llama.py` makes of Llama 3's configuration."""
    config = CONFIG_MAPPING["llama"](
        head_dim=dim,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    return (plain / scaled).tolist()


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_has_its_rotary_frequencies_as_a_tensor(factor: float, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = family_model("llama", head_dim=32, rope_parameters=rope)
    extra = {"rope_freqs.weight": floats(llama3_factors(32, 500000.0, factor))}
    write_gguf(tmp_path / "m.gguf", "llama", model, extra=extra)
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    assert gguf.config["rope_parameters"] == rope
    assert torch.equal(logits(built(gguf, configuration(gguf), None, "cpu")), logits(model))


@pytest.mark.parametrize(
    ("settings", "rope"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_position_encodings(settings: dict[str, Any], rope: dict[str, Any], tmp_path: Path) -> None:
    model = family_model("qwen2", rope_parameters={**rope, "rope_theta": 10000.0})
    write_gguf(tmp_path / "m.gguf", "qwen2", model, more={f"qwen2.{name}": value for name, value in settings.items()})
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    assert torch.equal(logits(built(gguf, configuration(gguf), None, "cpu")), logits(model))


def test_gemma_3_with_a_wider_rope_and_layers_of_its_own(tmp_path: Path) -> None:
    local = [True, False, True, True, False, True, True]
    kinds = ["sliding_attention" if near else "full_attention" for near in local]
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    model = family_model("gemma3", layer_types=kinds, rope_parameters=rope)
    more = {
        "gemma3.attention.sliding_window_pattern": local,
        "gemma3.rope.freq_base_swa": 5000.0,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }
    write_gguf(tmp_path / "m.gguf", "gemma3", model, more=more)
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    assert torch.equal(logits(built(gguf, configuration(gguf), None, "cpu")), logits(model))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a setting that nobody knows": ({"more": {"llama.attention.new": 1}}, "has the setting `attention.new`"),
    "experts": ({"more": {"llama.expert_count": 8}}, "has `8` for the setting `expert_count`"),
    "a window": ({"more": {"llama.attention.sliding_window": 64}}, "`attention.sliding_window`"),
    "heads that differ": ({"more": {"llama.attention.head_count_kv": [2, 1]}}, "must be a whole number above 0"),
    "half a rotation": ({"more": {"llama.rope.dimension_count": 8}}, "rotates 8 of the 16 numbers of a head"),
    "another position encoding": ({"more": {"llama.rope.scaling.type": "longrope"}}, "`longrope`"),
    "yarn of another kind": ({"more": {"llama.rope.scaling.yarn_ext_factor": 0.5}}, "yarn_ext_factor"),
    "a million layers": ({"more": {"llama.block_count": 1_000_000}}, "too few for 1,000,000 layers"),
    "no width": ({"drop": ["llama.embedding_length"]}, "has `None` for the setting `embedding_length`"),
    "no tokenizer": ({"drop": ["tokenizer.ggml.model"]}, "has no tokenizer"),
    "a foreign tensor": ({"extra": {"blk.0.attn_sinks.weight": floats([1.0])}}, "has the tensor `blk.0.attn_sinks"),
    "a tensor too many": ({"extra": {"blk.9.attn_norm.weight": floats([1.0] * 64)}}, "has no place"),
    "other frequencies": ({"extra": {"rope_freqs.weight": floats([1.0] * 4 + [3.0] * 4)}}, "not Llama 3's"),
    "a type that is not read": (
        {"extra": {"blk.0.attn_q.bias": (24, (64,), bytes(64))}},
        "in the type I8, which is not read",
    ),
    "an adapter": ({"more": {"general.type": "adapter"}}, "holds no language model"),
    "another family": (
        {"more": {"general.architecture": "bert"}},
        "is of the architecture `bert`; of GGUF",
    ),
    "an encoder for images": ({"more": {"general.architecture": "clip"}}, "is the part of a model that sees or hears"),
    "an encoder by its type": ({"more": {"general.type": "mmproj"}}, "is the part of a model that sees or hears"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_be_another_model_is_refused(what: str, tmp_path: Path) -> None:
    changes, words = REFUSED[what]
    write_gguf(tmp_path / "m.gguf", "llama", family_model("llama"), **changes)
    with pytest.raises(CheckpointError) as caught:
        gguf = GGUFModel.of(tmp_path / "m.gguf")
        built(gguf, configuration(gguf), None, "cpu")
    assert words in str(caught.value)


def nan_norm(model: torch.nn.Module) -> None:
    model.model.norm.weight.data[3] = float("nan")


def infinite_scale(model: torch.nn.Module) -> None:
    model.model.layers[0].mlp.down_proj.weight.data[:] = float("inf")


@pytest.mark.parametrize("damage", [nan_norm, infinite_scale])
def test_damaged_weights_are_named(damage: Callable[[torch.nn.Module], None], tmp_path: Path) -> None:
    model = family_model("llama")
    damage(model)
    write_gguf(tmp_path / "m.gguf", "llama", model)
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="its weights are damaged"):
        built(gguf, configuration(gguf), None, "cpu")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, "llama", family_model("llama"))
    assert GGUFModel.of(file).config["num_hidden_layers"] == 2
    write_gguf(file, "llama", family_model("llama", num_hidden_layers=3))
    assert GGUFModel.of(file).config["num_hidden_layers"] == 3


def test_a_shape_that_the_settings_do_not_make_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", family_model("llama"), more={"llama.feed_forward_length": 128})
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="has the shape 96×64, and its settings make it 128×64"):
        built(gguf, configuration(gguf), None, "cpu")


def test_tokens_that_end_an_answer(tmp_path: Path) -> None:
    more = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 0xFFFFFFFF}
    write_gguf(tmp_path / "m.gguf", "llama", family_model("llama", num_hidden_layers=1), more=more)
    # 4 is `<|end|>`, and its end of a text.
    assert GGUFModel.of(tmp_path / "m.gguf").generation_config["eos_token_id"] == [4, 7]
