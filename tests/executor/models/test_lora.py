"""Merged adapters: the logits of the unmerged ones, PEFT's own where it is installed, or a refusal with its reason."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.models.load import load
from qpdsl.executor.models.lora import merge
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.adapters import ALPHA, RANK, matrices, unmerged_logits, write_adapter
from tests.support.executor.model_files import save_random
from tests.support.executor.models import engine_of, random_model, served

TOKENS = torch.arange(24)[None] * 5 % 101
Q0, Q1, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"
EMBED, HEAD = "model.embed_tokens", "lm_head"
SCALE = ALPHA / RANK


@dataclass(frozen=True)
class Case:
    """The modules of an adapter, its settings, and where they differ from the usual ones the scales by module."""

    modules: tuple[str, ...]
    settings: Mapping[str, object]
    scales: Mapping[str, float] = field(default_factory=dict)
    model: str = "llama"


CASES = {
    "a list of names": Case((Q0, Q1), {"target_modules": ["q_proj"]}),
    "a whole name": Case((Q0,), {"target_modules": [Q0]}),
    "a regex": Case((Q1, DOWN), {"target_modules": r".*layers\.1\.(self_attn\.q|mlp\.down)_proj"}),
    "some layers": Case((Q1,), {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}),
    "one layer": Case((Q0,), {"target_modules": ["q_proj"], "layers_to_transform": 0}),
    "but for some": Case((Q1,), {"target_modules": ["q_proj"], "exclude_modules": ["0.self_attn.q_proj"]}),
    "rank-stabilized": Case((Q0,), {"target_modules": [Q0], "use_rslora": True}, {Q0: ALPHA / math.sqrt(RANK)}),
    "alphas of their own": Case(
        (Q0, Q1), {"target_modules": ["q_proj"], "alpha_pattern": {r"layers\.1.*q_proj": 10}}, {Q1: 10 / RANK}
    ),
    "embeddings and a head": Case((EMBED, HEAD), {"target_modules": ["embed_tokens", "lm_head"]}),
    "embeddings that are scaled": Case((EMBED,), {"target_modules": ["embed_tokens"]}, model="gemma"),
    "biases in the base": Case((Q0,), {"target_modules": [Q0]}, model="qwen2"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_merged_adapter_gives_the_logits_of_the_unmerged_one(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = random_model(case.model, tie_word_embeddings=False)
    tensors = matrices(model, case.modules)
    scales = {module: case.scales.get(module, SCALE) for module in case.modules}
    expected = unmerged_logits(model, tensors, TOKENS, scales)
    before = logits_of(model)
    merge(model, adapter(tmp_path, tensors, **case.settings))
    assert_close(logits_of(model), expected)
    assert (expected - before).abs().max() > 0.1


def test_ranks_of_their_own(tmp_path: Path) -> None:
    model = random_model("llama")
    tensors = {**matrices(model, [Q0], rank=2), **matrices(model, [Q1])}
    expected = unmerged_logits(model, tensors, TOKENS, {Q0: ALPHA / 2, Q1: SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=["q_proj"], rank_pattern={r"0\.self_attn\.q_proj": 2}))
    assert_close(logits_of(model), expected)


def test_all_linear_layers_but_the_head(tmp_path: Path) -> None:
    model = random_model("llama")
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != HEAD]
    tensors = matrices(model, names)
    expected = unmerged_logits(model, tensors, TOKENS, dict.fromkeys(names, SCALE))
    merge(model, adapter(tmp_path, tensors, target_modules="all-linear"))
    assert_close(logits_of(model), expected)


def test_magnitudes(tmp_path: Path) -> None:
    model = random_model("qwen2")
    with torch.no_grad():
        model.get_submodule(Q0).bias.normal_()
    tensors = {**matrices(model, [Q0]), f"{Q0}.lora_magnitude_vector": torch.rand(48) + 0.5}
    expected = unmerged_logits(model, tensors, TOKENS, {Q0: SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=[Q0], use_dora=True))
    assert_close(logits_of(model), expected)


def test_a_bias_of_the_matrices(tmp_path: Path) -> None:
    model = random_model("qwen2")
    tensors = {**matrices(model, [Q0]), f"{Q0}.lora_B.bias": torch.randn(48)}
    expected = unmerged_logits(model, tensors, TOKENS, {Q0: SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=[Q0], lora_bias=True))
    assert_close(logits_of(model), expected)


def test_transposed_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=101, n_positions=64, n_embd=48, n_layer=1, n_head=4, initializer_range=0.3)
    model = GPT2LMHeadModel(config).eval()
    tensors = matrices(model, ["transformer.h.0.attn.c_attn"])
    expected = unmerged_logits(model, tensors, TOKENS, {"transformer.h.0.attn.c_attn": SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=["c_attn"], fan_in_fan_out=True))
    assert_close(logits_of(model), expected)


def test_weights_that_come_whole(tmp_path: Path) -> None:
    model, other = random_model("qwen2"), random_model("qwen2", seed=1)
    whole = ["model.norm.weight", f"{DOWN}.weight", f"{Q1}.bias"]
    tensors = {**matrices(model, [Q0]), **{name: other.get_parameter(name).detach() + 1 for name in whole}}
    expected = copy.deepcopy(model)
    with torch.no_grad():
        for name in whole:
            expected.get_parameter(name).copy_(tensors[name])
    wanted = unmerged_logits(expected, tensors, TOKENS, {Q0: SCALE})
    settings = {"target_modules": [Q0], "modules_to_save": ["model.norm", "1.mlp.down_proj"], "bias": "all"}
    merge(model, adapter(tmp_path, tensors, **settings))
    assert_close(logits_of(model), wanted)


@pytest.mark.parametrize("changed", [EMBED, HEAD])
def test_embeddings_and_head_that_shared_their_weights_part_where_one_is_changed(changed: str, tmp_path: Path) -> None:
    model = random_model("llama", tie_word_embeddings=True)
    tensors = matrices(model, [changed])
    expected = unmerged_logits(model, tensors, TOKENS, {changed: SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=[changed.rpartition(".")[2]]))
    assert_close(logits_of(model), expected)
    assert not model.config.tie_word_embeddings


def test_rows_of_tokens_stay_shared_by_embeddings_and_head(tmp_path: Path) -> None:
    model = random_model("llama", tie_word_embeddings=True)
    rows = torch.randn(2, 48)
    expected = copy.deepcopy(model)
    with torch.no_grad():
        expected.get_parameter(f"{EMBED}.weight")[[5, 10]] = rows
    tensors = {**matrices(model, [Q0]), f"{EMBED}.token_adapter.trainable_tokens_delta": rows}
    wanted = unmerged_logits(expected, tensors, TOKENS, {Q0: SCALE})
    merge(model, adapter(tmp_path, tensors, target_modules=[Q0], trainable_token_indices=[5, 10]))
    assert_close(logits_of(model), wanted)
    assert model.lm_head.weight is model.get_parameter(f"{EMBED}.weight")


def test_half_precision_is_rounded_once(tmp_path: Path) -> None:
    model = random_model("llama")
    exact = model.get_parameter(f"{Q0}.weight").bfloat16().float()
    tensors = matrices(model, [Q0])
    added = tensors[f"{Q0}.lora_B.weight"] @ tensors[f"{Q0}.lora_A.weight"] * SCALE
    model.bfloat16()
    merge(model, adapter(tmp_path, tensors, target_modules=[Q0]))
    assert torch.equal(model.get_parameter(f"{Q0}.weight"), (exact + added).bfloat16())


def test_a_model_with_an_adapter_runs_as_its_merged_weights_do_in_any_batch(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    model = random_model("llama", vocab_size=768, pad_token_id=0)
    write_adapter(tmp_path / "a", matrices(model, [Q0, DOWN]), target_modules=[Q0, DOWN], base_model_name_or_path="x/m")
    loaded = load("m adapter=a", tmp_path / "m", "cpu", None, adapter=tmp_path / "a")
    assert loaded.notes == ()
    merge(model, AdapterFolder.of("m", tmp_path / "a"))
    prompts = [tuple(range(4, 4 + count)) for count in (3, 9, 20)]
    requests = [GenerateRequest(prompt, (0,), SamplingParams(0.0), 8) for prompt in prompts]
    alone = [served(engine_of(loaded.paged), (request,))[0][0].tokens for request in requests]
    together = [samples[0].tokens for samples in served(engine_of(loaded.paged), tuple(requests))]
    expected = [
        tuple(model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :].tolist())
        for prompt in prompts
    ]
    assert alone == together == expected


def test_an_adapter_of_another_model_is_noted(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    tensors = matrices(random_model("llama", vocab_size=768), [Q0])
    write_adapter(tmp_path / "a", tensors, target_modules=[Q0], base_model_name_or_path="acme/other")
    (note,) = load("m", tmp_path / "m", "cpu", None, adapter=tmp_path / "a").notes
    assert "was made for `acme/other`" in note and str(tmp_path / "m") in note


def test_a_model_that_a_verifier_loaded_without_its_head(tmp_path: Path) -> None:
    whole = random_model("llama")
    tensors = matrices(whole, [Q0])
    expected = unmerged_logits(whole, tensors, TOKENS, {Q0: SCALE})
    with_head = adapter(tmp_path / "other", {**tensors, "score.weight": torch.ones(1, 48)}, target_modules=[Q0])
    with pytest.raises(CheckpointError, match=r"`base_model.model.score.weight`, for which LlamaModel has no place"):
        merge(whole.model, with_head, is_base=True)
    merge(whole.model, adapter(tmp_path, tensors, target_modules=[Q0]), is_base=True)
    assert_close(logits_of(whole), expected)


def test_of_a_hub_id_the_two_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random(tmp_path / "m", "llama")
    tensors = matrices(random_model("llama", vocab_size=768), [Q0])
    write_adapter(tmp_path / "hub", tensors, target_modules=[Q0])
    asked: list[object] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if name == "acme/none":
            raise OSError("no such repository")
        return str(tmp_path / "hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    load("m", tmp_path / "m", "cpu", None, adapter="acme/lora")
    assert asked == [("acme/lora", ["adapter_config.json", "adapter_model.safetensors"])]
    with pytest.raises(ModelError, match=r"adapter `acme/none`: looked up as a hub id, .*: no such repository"):
        load("m", tmp_path / "m", "cpu", None, adapter="acme/none")


A0, B0 = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"
Tensors = dict[str, torch.Tensor]
FAULTS: dict[str, tuple[Callable[[Tensors], object], Mapping[str, object], str]] = {
    "a tensor is missing": (lambda t: t.pop(B0), {}, f"lack `lora_B` of `{Q0}`"),
    "a layer is missing": (lambda t: t, {"target_modules": ["q_proj"]}, f"lack `lora_A` of `{Q1}`"),
    "a layer too many": (
        lambda t: t.update({f"{Q1}.lora_A.weight": torch.ones(4, 48)}),
        {},
        f"have `base_model.model.{Q1}.lora_A.weight`, and its configuration does not name that layer",
    ),
    "a layer of another model": (
        lambda t: t.update({"model.layers.2.self_attn.q_proj.lora_A.weight": torch.ones(4, 48)}),
        {},
        "for which LlamaForCausalLM has no place",
    ),
    "an unknown tensor": (lambda t: t.update({f"{Q0}.lora_C": torch.ones(4)}), {}, "has no place"),
    "weights that nothing names": (
        lambda t: t.update({f"{DOWN}.weight": torch.ones(48, 96)}),
        {},
        f"have `base_model.model.{DOWN}.weight`, and its configuration does not name that layer",
    ),
    "whole weights are missing": (
        lambda t: t,
        {"modules_to_save": ["1.mlp"]},
        "lack `model.layers.1.mlp.gate_proj.weight`, which its `modules_to_save` names",
    ),
    "another rank": (lambda t: t, {"r": 8}, f"`base_model.model.{A0}` has the shape 4×48, and `{Q0}` and the rank 8"),
    "another width": (lambda t: t.update({A0: torch.ones(4, 47)}), {}, "has the shape 4×47"),
    "a larger vocabulary": (
        lambda t: t.update({f"{EMBED}.weight": torch.ones(103, 48)}),
        {},
        f"`base_model.model.{EMBED}.weight` has the shape 103×48, and the model makes it 101×48",
    ),
    "NaN": (lambda t: t[A0].__setitem__((0, 0), float("nan")), {}, f"`base_model.model.{A0}` holds NaN"),
    "infinity": (lambda t: t[B0].__setitem__((0, 0), float("inf")), {}, f"`base_model.model.{B0}` holds infinity"),
    "whole numbers": (lambda t: t.update({A0: t[A0].int()}), {}, "holds int32, and not floating-point numbers"),
    "numbers too large": (lambda t: (t[A0].fill_(1e30), t[B0].fill_(1e30)), {}, f"`{Q0}.weight` is beyond what"),
    "a layer that takes none": (
        lambda t: t,
        {"target_modules": [Q0, "norm"]},
        "names `model.norm`, and a LlamaRMSNorm cannot take LoRA matrices",
    ),
    "a bias where the base has none": (
        lambda t: t.update({f"{Q0}.lora_B.bias": torch.ones(48)}),
        {"lora_bias": True},
        f"changes a bias, and `{Q0}` has none",
    ),
    "magnitudes that nothing says": (
        lambda t: t.update({f"{Q0}.lora_magnitude_vector": torch.ones(48)}),
        {},
        "does not say `use_dora`",
    ),
    "rows without ids": (
        lambda t: t.update({f"{EMBED}.token_adapter.trainable_tokens_delta": torch.ones(2, 48)}),
        {},
        "`trainable_token_indices` names no such rows",
    ),
    "ids without rows": (lambda t: t, {"trainable_token_indices": [3]}, f"lack the rows of `{EMBED}`"),
    "an id beyond the vocabulary": (
        lambda t: t.update({f"{EMBED}.token_adapter.trainable_tokens_delta": torch.ones(1, 48)}),
        {"trainable_token_indices": [101]},
        "names an id beyond the 101",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_and_changes_nothing(fault: str, tmp_path: Path) -> None:
    change, settings, message = FAULTS[fault]
    model = random_model("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = matrices(model, [Q0])
    change(tensors)
    folder = adapter(tmp_path, tensors, **{"target_modules": [Q0], **settings})
    with pytest.raises(CheckpointError, match=re.escape(message)):
        merge(model, folder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_quantized_weights_take_no_adapter(tmp_path: Path) -> None:
    class Packed(torch.nn.Module):
        in_features, out_features = 48, 48

    model = random_model("llama")
    tensors = matrices(model, [Q0])
    model.get_submodule(Q0.rpartition(".")[0]).q_proj = Packed()
    with pytest.raises(CheckpointError, match=rf"`{Q0}` quantized.* use the model as it was before"):
        merge(model, adapter(tmp_path, tensors, target_modules=[Q0]))


def test_a_loaded_model_names_its_adapter_in_what_is_wrong(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    write_adapter(tmp_path / "a", matrices(random_model("llama"), [Q0]), target_modules=["q_proj"])
    with pytest.raises(ModelError, match=rf"^model `m` cannot be loaded: adapter `{tmp_path / 'a'}`: its files lack"):
        load("m", tmp_path / "m", "cpu", None, adapter=tmp_path / "a")


PEFT_CASES: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("llama", {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
    "patterns": ("qwen2", {"target_modules": ["q_proj", "up_proj"], "rank_pattern": {"up_proj": 2}, "bias": "all"}),
    "DoRA": ("llama", {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True}),
    "whole": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tokens": ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3, 7]}}),
    "bias": ("qwen2", {"target_modules": ["q_proj"], "lora_bias": True}),
}


@pytest.mark.parametrize("name", PEFT_CASES)
def test_the_weights_are_those_of_peft_to_the_bit(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT, whose results are compared, is not installed")
    family, settings = PEFT_CASES[name]
    model = random_model(family)
    ours = copy.deepcopy(model)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    adapted.save_pretrained(tmp_path)
    merge(ours, AdapterFolder.of("m", tmp_path))
    theirs = adapted.merge_and_unload().state_dict()
    assert [key for key, tensor in ours.state_dict().items() if not torch.equal(tensor, theirs[key])] == []


def adapter(folder: Path, tensors: Tensors, **settings: object) -> AdapterFolder:
    return AdapterFolder.of("m", write_adapter(folder / "adapter", tensors, **settings))


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    return unmerged_logits(model, {}, TOKENS, {})


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
