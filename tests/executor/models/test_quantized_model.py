"""Quantized checkpoints that are read without their packages: the model of the same weights as floats, or a refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.kernels.linear import StoredExperts
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.models.load import load, load_modules
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.cli import Run
from tests.support.executor.gguf_files import family_model
from tests.support.executor.models import engine_of, served
from tests.support.executor.quantized_files import Case, change, configure, copy_tokenizer, write_quantized

PACKED = Case("pack-quantized", 4, 32)
CASES = {
    "w4a16": PACKED,
    "w4a16-zeros": Case("pack-quantized", 4, 16, symmetric=False),
    "w8a16-packed": Case("pack-quantized", 8, 0),
    "w8a16-bytes": Case("int-quantized", 8, 0, symmetric=False),
    "w4-bytes": Case("naive-quantized", 4, 32),
    "gptq": Case("gptq", 4, 32),
    "gptq-8-zeros": Case("gptq", 8, 32, symmetric=False),
    "gptq-v2": Case("gptq_v2", 4, 0, symmetric=False),
    "awq": Case("awq", 4, 32, symmetric=False),
    "torchao": Case("torchao", 8, 0),
    "torchao-groups": Case("torchao", 8, 16),
}
TOKENS = 16
PROMPTS = [tuple(range(start, start + 9)) for start in range(20, 90, 10)]
QUERY = "model.layers.1.self_attn.q_proj"


def requests(model: PagedTextModel) -> tuple[GenerateRequest, ...]:
    """Greedy ones, and the last two drawn."""
    greedy, drawn = SamplingParams(0.0), SamplingParams(1.0)
    settings = [greedy] * (len(PROMPTS) - 2) + [drawn] * 2
    return tuple(
        GenerateRequest(prompt, (seed,), own, TOKENS, frozenset())
        for seed, (prompt, own) in enumerate(zip(PROMPTS, settings, strict=True))
    )


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_the_same_weights_as_floats(name: str, tmp_path: Path) -> None:
    """Qwen 2 has biases; the head is tied in one half of the cases, and not quantized in the other."""
    case, odd = CASES[name], len(name) % 2 == 1
    theirs = write_quantized(tmp_path, case, "qwen2" if odd else "llama", tie_word_embeddings=odd)
    model = load("m", tmp_path, "cpu", None)
    assert model.held == case.kind
    if vector_width():
        assert model.paged.implementation == "compiled layers"
    batch = requests(model)
    together = served(engine_of(model.paged), batch)
    for request, (sample,) in [*zip(batch, together, strict=True)][:-2]:
        out = theirs.generate(torch.tensor([request.prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        assert sample.tokens == tuple(out[0, len(request.prompt) :].tolist())
    alone: list[tuple[Sample, ...]] = [served(engine_of(model.paged), (request,))[0] for request in batch]
    assert alone == together


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}


@pytest.mark.parametrize("name", ["w4a16", "w8a16-bytes", "gptq", "awq", "torchao-groups"])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral"])
def test_experts_stay_as_they_are_stored(family: str, name: str, tmp_path: Path) -> None:
    """Qwen 2's have one besides that all tokens take."""
    shared = {"shared_expert_intermediate_size": 64} if family == "qwen2_moe" else {}
    settings = MIXTRAL if family == "mixtral" else EXPERTS
    theirs = write_quantized(tmp_path, CASES[name], family, **settings, **shared)
    model = load("m", tmp_path, "cpu", None)
    assert model.held == CASES[name].kind
    batch = requests(model)
    together = served(engine_of(model.paged), batch)
    modules, _ = load_modules("m", tmp_path, "cpu", None)
    kinds = [module.kind for module in modules.modules() if isinstance(module, StoredExperts)]
    assert kinds == [CASES[name].kind] * 2
    floats = load("m", tmp_path, "cpu", "float32")
    for request, (sample,) in [*zip(batch, together, strict=True)][:-2]:
        out = theirs.generate(torch.tensor([request.prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        assert sample.tokens == tuple(out[0, len(request.prompt) :].tolist())
    assert served(engine_of(floats.paged), batch[:1])[0][0].tokens == together[0][0].tokens
    assert [served(engine_of(model.paged), (request,))[0] for request in batch[::3]] == together[::3]


# What four bits stand for in MXFP4 (OCP Microscaling Formats, version 1.0, section 5.3.3).
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def test_experts_of_gpt_oss_in_four_bits(tmp_path: Path) -> None:
    """Blocks as openai/gpt-oss-20b has them: two neighbours in a byte, and the exponent of a power of two for 32."""
    theirs = family_model("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=32)
    theirs.generation_config.eos_token_id = [4]
    theirs.save_pretrained(tmp_path)
    copy_tokenizer(tmp_path)
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor | None] = {}
    for layer, module in enumerate(theirs.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(module.mlp.experts, name)
            experts, inputs, outputs = weight.shape
            codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=generator)
            exponents = torch.randint(118, 124, (experts, outputs, inputs // 32), generator=generator)
            values = FP4[codes % 8] * (1 - 2 * (codes // 8)) * 2.0 ** (exponents - 127)[..., None]
            weight.data = values.flatten(2).transpose(1, 2).contiguous()
            place = f"model.layers.{layer}.mlp.experts.{name}"
            blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors |= {place: None, f"{place}_blocks": blocks, f"{place}_scales": exponents.to(torch.uint8)}
    change(tmp_path, tensors)
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    configure(tmp_path, quantization_config=settings)
    for dtype in (None, "float32"):
        model = load("m", tmp_path, "cpu", dtype)
        assert model.held == ("MXFP4" if dtype is None else None)
        batch = requests(model)
        for request, (sample,) in zip(batch[:3], served(engine_of(model.paged), batch[:3]), strict=True):
            out = theirs.generate(torch.tensor([request.prompt]), max_new_tokens=TOKENS, eos_token_id=None)
            assert sample.tokens == tuple(out[0, len(request.prompt) :].tolist())


def test_experts_of_which_some_are_floats_are_left_to_the_package(tmp_path: Path) -> None:
    theirs = write_quantized(tmp_path, PACKED, "qwen3_moe", **EXPERTS)
    place = "model.layers.1.mlp.experts.2.up_proj"
    tensors = {f"{place}.{own}": None for own in ("weight_packed", "weight_scale", "weight_shape")}
    floats = theirs.model.layers[1].mlp.experts.gate_up_proj[2].chunk(2)[1].contiguous()
    change(tmp_path, {**tensors, f"{place}.weight": floats})
    with pytest.raises(ModelError, match="compressed-tensors"):
        load("m", tmp_path, "cpu", None)


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_not_quantized_keeps_its_type(tied: bool, tmp_path: Path) -> None:
    theirs = write_quantized(tmp_path, PACKED, dtype=torch.bfloat16, tie_word_embeddings=tied)
    model = load("m", tmp_path, "cpu", None)
    (sample,) = served(engine_of(model.paged), requests(model)[:1])[0]
    out = theirs.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
    assert sample.tokens == tuple(out[0, len(PROMPTS[0]) :].tolist())
    assert model.paged.dtype == torch.float32
    packed = model.paged.head.packed
    assert packed is not None and packed.kind == "bfloat16"
    assert model.paged.parameters == sum(parameter.numel() for parameter in theirs.parameters())


def test_weights_take_the_room_of_their_bits(tmp_path: Path) -> None:
    if not vector_width():
        pytest.skip("this machine has no vectors")
    write_quantized(tmp_path, PACKED, tie_word_embeddings=True)
    small, large = (load("m", tmp_path, "cpu", dtype).paged.weight_bytes for dtype in (None, "float32"))
    head = 768 * 64 * 4
    # Four bits, with a scale and an offset in 16 bits for 32 of them; panels are padded.
    assert (small - head) / (large - head) < 0.2


def test_an_adapter_needs_floats(tmp_path: Path) -> None:
    folder, adapter = tmp_path / "m", tmp_path / "adapter"
    theirs = write_quantized(folder, CASES["awq"])
    adapter.mkdir()
    config = {"peft_type": "LORA", "target_modules": ["q_proj"], "r": 2, "lora_alpha": 4}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    parts: dict[str, torch.Tensor] = {}
    for layer in range(2):
        weight = theirs.get_submodule(f"model.layers.{layer}.self_attn.q_proj").weight
        first, second = torch.randn(2, 64) * 0.3, torch.randn(64, 2) * 0.3
        weight.data += 2 * second @ first
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        parts |= {f"{at}A.weight": first, f"{at}B.weight": second}
    save_file(parts, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"the weights of a quantized checkpoint are kept .*`--dtype float32` makes"):
        load("m", folder, "cpu", None, adapter=adapter)
    model = load("m", folder, "cpu", "float32", adapter=adapter)
    assert model.held is None
    (sample,) = served(engine_of(model.paged), requests(model)[:1])[0]
    out = theirs.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
    assert sample.tokens == tuple(out[0, len(PROMPTS[0]) :].tolist())


Damage = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor | None]]


def replaced(name: str, made: Callable[[torch.Tensor], torch.Tensor | None]) -> Damage:
    return lambda tensors: {f"{QUERY}.{name}": made(tensors[f"{QUERY}.{name}"])}


DAMAGES: dict[str, Damage] = {
    f"its files lack `{QUERY}.weight`": replaced("weight_packed", lambda tensor: None),
    f"its files lack `{QUERY}.weight_scale`": replaced("weight_scale", lambda tensor: None),
    f"`{QUERY}.weight_scale` has the shape 64×1,": replaced("weight_scale", lambda tensor: tensor[:, :1].contiguous()),
    f"`{QUERY}.weight_packed` has the shape 8×8,": replaced("weight_packed", lambda tensor: tensor[:8].contiguous()),
    f"`{QUERY}`: `weight_packed` holds int64": replaced("weight_packed", lambda tensor: tensor.long()),
    f"`{QUERY}`: its scales hold NaN": replaced("weight_scale", lambda tensor: tensor * torch.nan),
    f"`{QUERY}`: `weight_shape` says 128×128": replaced("weight_shape", lambda tensor: tensor * 2),
    "have `model.more.weight`, for which": lambda tensors: {"model.more.weight": torch.ones(2, 2)},
    f"have `{QUERY}.bias`, for which": lambda tensors: {f"{QUERY}.bias": torch.ones(64)},
    "`model.embed_tokens.weight` holds NaN": lambda tensors: {
        "model.embed_tokens.weight": torch.full((768, 64), torch.nan, dtype=torch.float16)
    },
}


@pytest.mark.parametrize("words", DAMAGES)
def test_damaged_files_are_refused_by_name(words: str, tmp_path: Path) -> None:
    write_quantized(tmp_path, PACKED, dtype=torch.float16)
    change(tmp_path, DAMAGES[words](load_file(tmp_path / "model.safetensors")))
    with pytest.raises(ModelError, match=re.escape(words)):
        load("m", tmp_path, "cpu", None)


def test_groups_that_do_not_fill_a_layer_are_refused(tmp_path: Path) -> None:
    write_quantized(tmp_path, PACKED)
    settings = Case("pack-quantized", 4, 48).settings
    configure(tmp_path, quantization_config=settings)
    with pytest.raises(ModelError, match=r"`model\.layers\.0.*`: 64 inputs are no multiple of its groups of 48"):
        load("m", tmp_path, "cpu", None)


def test_scattered_groups_are_left_to_the_package(tmp_path: Path) -> None:
    """Its words, as it is not installed with the tests; where it is, it reads them."""
    write_quantized(tmp_path, CASES["gptq"])
    change(tmp_path, {f"{QUERY}.g_idx": torch.arange(64, dtype=torch.int32) % 2})
    with pytest.raises(ModelError, match=r"(?i)gptq"):
        load("m", tmp_path, "cpu", None)


def test_explain_says_how_weights_are_held(tmp_path: Path, qpdsl: Run) -> None:
    write_quantized(tmp_path / "m", PACKED)
    program = tmp_path / "ask.qp"
    model = f'model llm = "{tmp_path / "m"}"\n'
    program.write_text(model + "program p(q: text) -> text {\n chat user=q\n generate llm max_tokens=4\n}")
    assert qpdsl("explain", program).out.endswith("weights of llm: int4 in groups of 32\n")
    assert "weights of" not in qpdsl("explain", program, "--dtype", "float32").out
    done = qpdsl("run", program, "--set", "q=How many?")
    assert done.code == 0
