"""Files that llama.cpp's own converter wrote give the models that they were made from.

`recorded/gguf_families.tar.xz` has a file for each family, from transformers 5.24 models with random weights: rounded
to sixteenths, so that the archive is small. llama.cpp's converter is that of llama-cpp-python 0.3.36. `logits.json` has
the tokens, and every 17th of transformers' logits after the 6th and the last of them.
"""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from qpdsl.executor.checkpoint.gguf_families import FAMILIES, GGUFModel
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader
from qpdsl.executor.kernels.data.weights import GroupedWeight
from qpdsl.executor.kernels.linear import StoredExperts
from qpdsl.executor.models.gguf_model import StoredTensors, built
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.gguf_files import gguf_bytes
from tests.support.executor.models import engine_of, served
from tests.support.user_cache import own_cache

ARCHIVE = Path(__file__).parent / "recorded" / "gguf_families.tar.xz"


@cache
def recorded() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


# Of each kind of layer one: these run in the engine too.
ENGINES = (
    *("qwen3moe", "qwen35", "qwen35moe", "gpt-oss", "gemma4", "gemma4_moe", "deepseek_v2", "deepseek_v3_yarn"),
    *("lfm2", "granitehybrid", "llama4"),
)
NAMES = sorted(name.removesuffix(".gguf") for name in recorded() if name.endswith(".gguf"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in recorded().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def configuration(gguf: GGUFModel) -> PretrainedConfig:
    settings = dict(gguf.config)
    return CONFIG_MAPPING[settings.pop("model_type")](**settings)


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(recorded()[f"{name}.gguf"])
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    said = json.loads(recorded()["logits.json"])[name]
    expected = torch.tensor(said["logits"])
    for dtype in (None, torch.float32):
        model = built(gguf, configuration(gguf), dtype, "cpu")
        with torch.no_grad():
            found = model(input_ids=torch.tensor([said["tokens"]]), use_cache=False).logits[0, [5, -1], ::17]
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_every_family_is_recorded_or_written_elsewhere(folder: Path) -> None:
    read = {GGUFHeader.of(folder / f"{name}.gguf").architecture for name in NAMES}
    written = {"gemma", "gemma2", "gemma3", "glm4", "granite", "phi3", "qwen2", "qwen3", "smollm3"}
    # These have the tensors and settings of others.
    alike = {"qwen2vl", "qwen3vl", "qwen3vlmoe", "nemotron_h"}
    assert FAMILIES.keys() - read == written | alike


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss"])
def test_experts_stay_as_they_are_stored(name: str, kind: str, folder: Path) -> None:
    """Each expert has the blocks of the file; what they make of tokens is what their floats make of them."""
    gguf_package = pytest.importorskip("gguf", reason="blocks are made with the package gguf")
    type_of = gguf_package.GGMLQuantizationType
    path = folder / f"{name}.gguf"
    header, data = GGUFHeader.of(path), path.read_bytes()
    tensors = {}
    for tensor in header.tensors.values():
        own, number = data[tensor.start : tensor.start + tensor.size], int(type_of[tensor.type])
        if tensor.name.endswith("_exps.weight"):
            values, number = np.frombuffer(own, np.float32).reshape(tensor.shape), int(type_of[kind])
            own = gguf_package.quants.quantize(values, type_of[kind]).tobytes()
        tensors[tensor.name] = (number, tensor.shape, own)
    path.write_bytes(gguf_bytes(header.metadata, tensors))
    gguf = GGUFModel.of(path)
    assert gguf.kinds.startswith(kind) or kind in gguf.kinds
    kept = built(gguf, configuration(gguf), None, "cpu")
    experts = [module for module in kept.modules() if isinstance(module, StoredExperts)]
    assert experts and all(isinstance(part, GroupedWeight) for part in experts[0].stored["down_proj"])
    floats = built(gguf, configuration(gguf), torch.float32, "cpu")
    ids = torch.arange(30)[None] * 7 % 256
    with torch.no_grad():
        assert torch.allclose(kept(input_ids=ids).logits, floats(input_ids=ids).logits, atol=1e-4)


def test_groups_that_a_reordering_takes_apart_become_floats(folder: Path) -> None:
    gguf = GGUFModel.of(folder / "qwen35.gguf")
    name = "model.layers.0.linear_attn.out_proj.weight"
    tensors = StoredTensors(gguf)
    weight = tensors.weight(name, torch.Size(gguf.tensors[name].shape))
    # The file has the first value heads of both key heads before the second ones.
    source = gguf.tensors[name].sources[0]
    stored = np.frombuffer(source.path.read_bytes()[source.start :][: source.size], np.float32).reshape(source.shape)
    assert not np.array_equal(weight.dequantized().numpy(), stored)
    assert np.array_equal(np.sort(weight.dequantized().numpy(), axis=1), np.sort(stored, axis=1))


@pytest.mark.parametrize("name", ENGINES)
def test_the_engine_writes_the_tokens_of_generate(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    gguf = GGUFModel.of(folder / f"{name}.gguf")
    floats = built(gguf, configuration(gguf), torch.float32, "cpu")
    mine = load("m", folder / f"{name}.gguf", "cpu", None)
    prompts = [[id * 7 % 256 + 3 for id in range(start, start + 20)] for start in (0, 5, 9)]
    requests = tuple(GenerateRequest(tuple(prompt), (0,), SamplingParams(0.0), 12, frozenset()) for prompt in prompts)
    found = [samples[0].tokens for samples in served(engine_of(mine.paged), requests)]
    floats.generation_config.eos_token_id = None
    for prompt, tokens in zip(prompts, found, strict=True):
        with torch.no_grad():
            whole = floats.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert list(tokens) == whole[0, len(prompt) :].tolist()
