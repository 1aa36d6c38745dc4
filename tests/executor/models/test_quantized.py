"""Quantized checkpoints through the real loader: the tokens of transformers' `generate`, in any batch, or a refusal.

The packages that read them are no dependencies of this one: each test runs where its package is installed.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen2Config
from transformers.utils import is_accelerate_available

from family.tasks.counting import evaluation_problems
from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import load
from qpdsl.executor.models.quantized_model import mixed_rows
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.text.context import Context, encode
from tests.support.executor.models import engine_of, served

SOURCE = zoo.path("zoo/counting")
TOKENS = 40


def original() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float32)


def saved(folder: Path, configuration: object) -> None:
    """Has transformers quantize the built-in model and save it."""
    model = AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float32, quantization_config=configuration)
    model.save_pretrained(folder)


def torchao(name: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        from transformers import TorchAoConfig

        saved(folder, TorchAoConfig(getattr(importlib.import_module("torchao.quantization"), name)()))

    return save


def bitsandbytes(**given: object) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        from transformers import BitsAndBytesConfig

        saved(folder, BitsAndBytesConfig(**given))

    return save


def declare(folder: Path, quantization: dict[str, object]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantization}))


def fp8_blocks(folder: Path, size: int = 64) -> None:
    """e4m3 with a scale for each block, as DeepSeek-V3 and Qwen3 ship it."""
    original().save_pretrained(folder)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = weight
        if "_proj." in name:
            rows, columns = weight.shape
            blocks = weight.view(rows // size, size, columns // size, size)
            scale = blocks.abs().amax((1, 3)) / 448
            eight = (blocks / scale[:, None, :, None]).view(rows, columns).to(torch.float8_e4m3fn)
            stored |= {name: eight, f"{name}_scale_inv": scale}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    declare(folder, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [size, size]})


def compressed(form: str, bits: int, kind: str, **given: object) -> Callable[[Path], None]:
    """What llm-compressor writes, by the package that it writes with."""

    def save(folder: Path) -> None:
        from compressed_tensors import quantization
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization.utils import calculate_qparams

        model = original()
        arguments = quantization.QuantizationArgs(num_bits=bits, type=kind, symmetric=True, **given)
        scheme = quantization.QuantizationScheme(targets=["Linear"], weights=arguments)
        quantization.apply_quantization_config(
            model,
            quantization.QuantizationConfig(
                config_groups={"all": scheme}, ignore=["lm_head"], format=form, quantization_status="compressed"
            ),
        )
        for layer in model.modules():
            if hasattr(layer, "weight_scale"):
                groups = layer.weight.view(layer.weight_scale.numel(), -1)
                scale, _ = calculate_qparams(groups.amin(1), groups.amax(1), arguments)
                layer.weight_scale.data = scale.to(torch.float32).view(layer.weight_scale.shape)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(str(folder))

    return save


# By name: the package, and what writes a checkpoint.
WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "torchao-int8-weights": ("torchao", torchao("Int8WeightOnlyConfig")),
    "torchao-int8-both": ("torchao", torchao("Int8DynamicActivationInt8WeightConfig")),
    "torchao-fp8-weights": ("torchao", torchao("Float8WeightOnlyConfig")),
    "bitsandbytes-int8": ("bitsandbytes", bitsandbytes(load_in_8bit=True, llm_int8_threshold=0.0)),
    "bitsandbytes-fp4": ("bitsandbytes", bitsandbytes(load_in_4bit=True)),
    "bitsandbytes-nf4": ("bitsandbytes", bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "fp8-blocks": ("accelerate", fp8_blocks),
    "compressed-int8": ("compressed_tensors", compressed("pack-quantized", 8, "int", strategy="channel")),
    "compressed-int4": ("compressed_tensors", compressed("pack-quantized", 4, "int", strategy="group", group_size=64)),
    "compressed-fp8": ("compressed_tensors", compressed("float-quantized", 8, "float", strategy="channel")),
}


def written(package: str, write: Callable[[Path], None], folder: Path) -> Path:
    """A checkpoint with its tokenizer; skips where its package is missing."""
    for needed in (package, "accelerate"):
        pytest.importorskip(needed)
    write(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SOURCE / file, folder / file)
    return folder


@pytest.mark.parametrize("name", WRITERS)
def test_tokens_are_those_of_generate_in_any_batch(name: str, tmp_path: Path) -> None:
    folder = written(*WRITERS[name], tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [encode(tokenizer, Context(turns=(("user", each.text),))) for each in evaluation_problems(8)]
    expected = [
        tuple(
            theirs.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)[0, len(prompt) :].tolist()
        )
        for prompt in prompts
    ]
    mine = load("m", folder, "cpu", None)
    greedy, drawn = SamplingParams(0.0), SamplingParams(1.0)
    batch = [GenerateRequest(prompt, (0,), greedy, TOKENS, mine.eos) for prompt in prompts]
    batch += [GenerateRequest(prompt, (1, 2), drawn, TOKENS, mine.eos) for prompt in prompts]
    together = served(engine_of(mine.paged), tuple(batch))
    assert [samples[0].tokens for samples in together[: len(prompts)]] == expected
    assert [served(engine_of(mine.paged), (request,))[0] for request in batch[::3]] == together[::3]


def test_layers_that_mix_rows_are_refused(tmp_path: Path) -> None:
    folder = written("bitsandbytes", bitsandbytes(load_in_8bit=True), tmp_path)
    with pytest.raises(
        ModelError, match=r"Linear8bitLt .* depends on what else is in the batch .*llm_int8_threshold is 0"
    ):
        load("m", folder, "cpu", None)


class OneScale(torch.nn.Linear):
    """Rounds its input with one scale for the whole batch."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        scale = input.abs().max() / 127
        return super().forward((input / scale).round() * scale)


def test_one_scale_for_a_batch_is_found() -> None:
    config = Qwen2Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    model = AutoModelForCausalLM.from_config(config)
    assert mixed_rows(model) is None
    model.model.layers[0].mlp.down_proj = OneScale(48, 32)
    assert mixed_rows(model) == "what its OneScale layers make of a token depends on what else is in the batch"


def test_a_method_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "m")
    declare(tmp_path / "m", {"quant_method": "of-my-own"})
    with pytest.raises(ModelError, match="transformers does not know its quantization, `of-my-own`"):
        load("m", tmp_path / "m", "cpu", None)


@pytest.mark.skipif(is_accelerate_available(), reason="the package is there")
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    fp8_blocks(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / file, tmp_path / file)
    with pytest.raises(ModelError, match="accelerate"):
        load("m", tmp_path, "cpu", None)
