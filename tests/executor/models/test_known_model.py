"""A model that was loaded before: the same bits without transformers' code, or loaded as if it never was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_folder import ModelFolder, isolated
from qpdsl.executor.engine.model.probe import TrialTexts
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_file import KeptPanels
from qpdsl.executor.models.known_model import Place
from qpdsl.executor.models.load import load
from qpdsl.executor.models.quick_load import load as quick_load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION
from qpdsl.grammar.words import KVType
from tests.support.executor.families import Family, tiny
from tests.support.executor.gguf_files import family_model, write_gguf
from tests.support.executor.model_files import save_random
from tests.support.executor.reward_models import math_shepherd, outcome, qwen, skywork
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

FAMILIES: dict[str, dict[str, Any]] = {
    "exaone4": {},
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "glm4": {"attention_bias": True},
    "granite": {"residual_multiplier": 0.3, "embedding_multiplier": 5.0, "attention_multiplier": 0.2},
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama of long texts": {
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mistral": {"sliding_window": 7},
    "olmo2": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is known, at first of nothing."""
    own_cache(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache" / "qpdsl" / "models"


def bits(model: PagedTextModel) -> list[torch.Tensor]:
    """Hidden states and logits of a few tokens."""
    paged = model.paged
    trial = TrialTexts(paged.vocabulary, paged.max_positions, states=paged.states).kernel_start(paged.layout)
    hidden, _ = paged.forward(trial.batch, trial.cache)
    return [paged.embed(trial.batch.tokens), hidden, paged.head.dense(hidden)]


def save(folder: Path, model: PreTrainedModel) -> Path:
    """A folder of the model with the built-in tokenizer."""
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(zoo.path("zoo/counting") / file, folder / file)
    return folder


def check_known(place: Path, dtype: str | None = None, kv_type: KVType | None = None, kind: str | None = None) -> None:
    """Loads a model as if for the first time, and from what is known of it then: with and without kept weights."""
    first = quick_load("m", place, "cpu", dtype, kv_type, kind)
    folder = ModelFolder.of("m", place)
    floats = getattr(torch, dtype) if dtype else torch.float32 if folder.gguf is None else None
    where = Place.of(folder, floats, kind)
    assert where is not None
    record = where.known()
    kept = KeptPanels.of(where.panels, where.key)
    assert record is not None and kept is not None
    with isolated(folder) as files:
        again, *others = (record.loaded("m", folder, files, floats, kv_type, shelf) for shelf in (kept, None))
    for model in (again, *others):
        assert all(torch.equal(one, other) for one, other in zip(bits(first), bits(model), strict=True))
    for name in ("eos", "max_positions", "width", "writes", "notes", "held", "weights", "kind"):
        assert getattr(first, name) == getattr(again, name), name
    for name in ("layout", "parameters", "weight_bytes", "row_bytes", "implementation", "depth", "mixes_rows", "fold"):
        assert getattr(first.paged, name) == getattr(again.paged, name), name
    assert first.encode("Zoë has 3 🙂.") == again.encode("Zoë has 3 🙂.")
    assert first.tokenizer.chat_template == again.tokenizer.chat_template


@pytest.mark.parametrize("case", FAMILIES)
def test_a_family_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    family = Family(case.partition(" ")[0], {"vocab_size": 768, **FAMILIES[case]})
    check_known(save(tmp_path / "m", tiny(family)))


@pytest.mark.parametrize(("dtype", "kv_type"), [("bfloat16", None), (None, "int8")])
def test_other_types_give_the_same_bits(dtype: str | None, kv_type: KVType | None, tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    check_known(tmp_path / "m", dtype, kv_type)


@pytest.mark.parametrize(
    ("architecture", "tied", "stored"), [("llama", True, "Q4_1"), ("qwen2", False, "Q8_0"), ("gemma3", True, "Q4_0")]
)
def test_a_gguf_file_gives_the_same_bits(architecture: str, tied: bool, stored: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the files are written with the package gguf")
    model = family_model(architecture, tie_word_embeddings=tied)
    write_gguf(tmp_path / "small.gguf", architecture, model, (stored,))
    check_known(tmp_path / "small.gguf")


@pytest.mark.parametrize("make", [math_shepherd, skywork, qwen, outcome])
def test_a_verifier_gives_the_same_bits(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "m")
    kind = BY_CONFIGURATION if make in (skywork, qwen, outcome) else "math_shepherd"
    check_known(tmp_path / "m", kind=kind)


def test_what_cannot_be_compiled_is_loaded_each_time(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "gpt_neox")
    model = quick_load("m", tmp_path / "m", "cpu", None)
    assert not model.paged.is_compiled
    where = Place.of(ModelFolder.of("m", tmp_path / "m"), torch.float32, None)
    assert where is not None and where.known() is None and not [*where.panels.parent.glob("*")]


def test_experts_which_run_as_modules_are_loaded_each_time(tmp_path: Path) -> None:
    changes = {"vocab_size": 768, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4}
    save(tmp_path / "m", tiny(Family("qwen3_next", changes)))
    model = quick_load("m", tmp_path / "m", "cpu", None)
    assert model.paged.is_compiled and model.paged.runs_modules
    where = Place.of(ModelFolder.of("m", tmp_path / "m"), torch.float32, None)
    assert where is not None and where.known() is None and not [*where.panels.parent.glob("*")]


def test_another_file_is_another_model(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "m"
    save_random(folder, "llama")
    before = bits(quick_load("m", folder, "cpu", None))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    after = bits(quick_load("m", folder, "cpu", None))
    assert not torch.equal(before[1], after[1])
    assert all(torch.equal(one, two) for one, two in zip(after, bits(load("m", folder, "cpu", None)), strict=True))
    assert len([*cache.iterdir()]) == 2


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2", '{"outline": 3}', "\0" * 100], ids=range(5))
def test_a_damaged_record_is_written_anew(damage: str, tmp_path: Path, cache: Path) -> None:
    save_random(tmp_path / "m", "llama")
    before = bits(quick_load("m", tmp_path / "m", "cpu", None))
    (record,) = cache.iterdir()
    whole = record.read_text()
    record.write_text(damage)
    after = bits(quick_load("m", tmp_path / "m", "cpu", None))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert record.read_text() == whole


@pytest.mark.parametrize("what", ["removed", "cut off", "another model's"])
def test_weights_that_are_not_whole_are_laid_out_anew(what: str, tmp_path: Path, cache: Path) -> None:
    save_random(tmp_path / "m", "llama")
    save_random(tmp_path / "other", "qwen2")
    quick_load("other", tmp_path / "other", "cpu", None)
    (other,) = (cache.parent / "panels").iterdir()
    before = bits(quick_load("m", tmp_path / "m", "cpu", None))
    (kept,) = {*(cache.parent / "panels").iterdir()} - {other}
    whole = kept.read_bytes()
    kept.unlink()
    if what != "removed":
        kept.write_bytes(whole[:-1] if what == "cut off" else other.read_bytes())
    after = bits(quick_load("m", tmp_path / "m", "cpu", None))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert kept.read_bytes() == whole


def test_where_nothing_can_be_kept_a_model_is_loaded_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random(tmp_path / "m", "llama")
    before = bits(quick_load("m", tmp_path / "m", "cpu", None))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        after = bits(quick_load("m", tmp_path / "m", "cpu", None))
        assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert (tmp_path / "file").read_bytes() == b""


def test_a_record_of_other_names_is_not_used(tmp_path: Path, cache: Path) -> None:
    save_random(tmp_path / "m", "llama")
    before = bits(quick_load("m", tmp_path / "m", "cpu", None))
    (record,) = cache.iterdir()
    record.write_text(record.read_text().replace("k_proj.weight", "z_proj.weight"))
    after = bits(quick_load("m", tmp_path / "m", "cpu", None))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_what_is_wrong_with_a_known_model_is_said(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    quick_load("m", tmp_path / "m", "cpu", None)
    (tmp_path / "m" / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer"):
        quick_load("m", tmp_path / "m", "cpu", None)


# What a second start has no use for, and takes long to import.
NOT_AGAIN = (
    "transformers",
    "huggingface_hub",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "datasets",
    "rich",
    "httpx",
)


def test_the_second_run_imports_nothing_of_transformers(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom qpdsl.cli import main\nmain(['run', 'best_of_n', '--set', 'problem=Mia has 3 boxes.'])\n"
        f"print([name for name in {NOT_AGAIN} if name in sys.modules])"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    *answers, (first, second) = zip(*(output.splitlines() for output in outputs), strict=True)
    assert all(one == other for one, other in answers)
    assert "transformers" in first and second == "[]"


def test_a_tokenizer_that_transformers_adds_to_stays_transformers_own(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    settings = tmp_path / "m" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "sep_token": "Zoë has"}))
    tokenizer = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    first = quick_load("m", tmp_path / "m", "cpu", None)
    again = quick_load("m", tmp_path / "m", "cpu", None)
    assert "Zoë has" in first.tokenizer.get_vocab() and "Zoë has" not in tokenizer["model"]["vocab"]
    assert first.encode("Zoë has 3.") == again.encode("Zoë has 3.")
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
