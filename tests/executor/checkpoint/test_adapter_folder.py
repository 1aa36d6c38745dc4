"""What an adapter folder must hold, and the words for each thing that is wrong with one. Nothing is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder, LoraConfig
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from tests.support.executor.model_files import weights, write_model

WEIGHTS = "adapter_model.safetensors"
CONFIG = {"peft_type": "LORA", "target_modules": ["q_proj"], "r": 4, "lora_alpha": 8}


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes | str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def configured(**more: object) -> Callable[[Path], object]:
    return write("adapter_config.json", json.dumps({**CONFIG, **more}))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


def linked(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / WEIGHTS).symlink_to("../outside.safetensors")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (remove("adapter_config.json"), "it has no adapter_config.json"),
    "no weights": (remove(WEIGHTS), f"it has no {WEIGHTS}"),
    "weights that can carry code": (pickled, "which can carry code: save it as safetensors"),
    "no tensors": (write(WEIGHTS, weights()), "holds no tensors"),
    "weights cut off": (lambda folder: os.truncate(folder / WEIGHTS, 90), "is cut off"),
    "a link out of the folder": (linked, "outside the folder"),
    "a pointer": (write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"), "is a Git LFS pointer"),
    "broken JSON": (write("adapter_config.json", "{"), "`adapter_config.json` cannot be read"),
    "JSON of great depth": (write("adapter_config.json", "[" * 100_000), "`adapter_config.json` cannot be read"),
    "another method": (configured(peft_type="IA3"), "it is of PEFT's type IA3, and only LORA"),
    "no method": (configured(peft_type=None), "it names no `peft_type`"),
    "no rank": (configured(r=0), "its `r` is 0"),
    "a rank that is none": (configured(r=True), "its `r` is True"),
    "an alpha that is none": (configured(lora_alpha="8"), "its `lora_alpha` is '8'"),
    "an endless alpha": (
        configured(lora_alpha=float("inf")),
        "`lora_alpha` is inf",
    ),
    "ranks that are none": (configured(rank_pattern={"q_proj": -1}), "its `rank_pattern` is -1"),
    "patterns that are none": (configured(alpha_pattern=[3]), "its `alpha_pattern` is no mapping"),
    "targets that are none": (configured(target_modules=[3]), "its `target_modules` is neither a text nor a list"),
    "a broken regex": (configured(target_modules="("), "it has a regex that cannot be read, `(`"),
    "layers of a regex": (configured(target_modules=".*", layers_to_transform=[1]), "needs a list of `target_modules`"),
    "an odd bias": (configured(bias="some"), "its `bias` is 'some'"),
    "other weights to begin with": (
        configured(init_lora_weights="pissa_niter_4"),
        "(`init_lora_weights` 'pissa",
    ),
    "experts": (
        configured(target_parameters=["experts.down_proj"]),
        "its setting `target_parameters`",
    ),
    "layers put in twice": (configured(layer_replication=[[0, 4], [2, 5]]), "its setting `layer_replication`"),
    "activated by tokens": (configured(alora_invocation_tokens=[1, 2]), "its setting `alora_invocation_tokens`"),
    "a setting of the future": (configured(use_better_lora=True), "its setting `use_better_lora` is not supported"),
}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    configured()(folder)
    write(WEIGHTS, weights("a", "b"))(folder)
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_an_adapter_is_said(fault: str, adapter: Path) -> None:
    assert AdapterFolder.of("m", adapter).shapes == {"a": (2,), "b": (2,)}
    change, message = FAULTS[fault]
    change(adapter)
    with pytest.raises(ModelError) as caught:
        AdapterFolder.of("m", adapter)
    assert str(caught.value).startswith(f"model `m` cannot be loaded: adapter `{adapter}`: ")
    assert message in str(caught.value)


def test_an_adapter_is_no_model(adapter: Path) -> None:
    with pytest.raises(ModelError, match=r"is an adapter .* give its base model as the model"):
        ModelFolder.of("m", adapter)
    with pytest.raises(ModelError, match=r"it has no adapter_config\.json"):
        AdapterFolder.of("m", write_model(adapter.parent / "model"))


def test_settings_of_the_training_do_not_count() -> None:
    config = LoraConfig.of({**CONFIG, "lora_dropout": 0.1, "task_type": "X", "new_switch": False, "other": None})
    assert (config.rank, config.alpha, config.scale_of("model.layers.0.self_attn.q_proj")) == (4, 8.0, 2.0)


@pytest.mark.parametrize(
    ("settings", "module", "targeted"),
    [
        ({"target_modules": ["proj"]}, "model.q_proj", False),
        ({"target_modules": ["model.q_proj"]}, "model.q_proj", True),
        ({"target_modules": r"model\.q"}, "model.q_proj", False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["attn"]}, "layers.0.attn.q_proj", False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["tn"]}, "layers.0.attn.q_proj", True),
        ({"target_modules": ["w"], "layers_to_transform": [1]}, "model.layers.1.experts.0.w", True),
        ({"target_modules": ["w"], "layers_to_transform": [0]}, "model.layers.1.experts.0.w", False),
        ({"target_modules": ["w"], "layers_to_transform": [0], "layers_pattern": "blocks"}, "model.layers.0.w", False),
        ({"target_modules": ["w"], "layers_to_transform": [0]}, "model.w", False),
    ],
)
def test_which_layers_an_adapter_names(settings: dict[str, object], module: str, targeted: bool) -> None:
    assert LoraConfig.of({**CONFIG, **settings}).is_target(module) == targeted


MODULE = "model.language_model.layers.10.self_attn.q_proj"


def test_a_regex_of_a_stranger_has_an_end() -> None:
    assert not LoraConfig.of({**CONFIG, "target_modules": r"([\w.]+)+!"}).is_target(MODULE)
    config = LoraConfig.of({**CONFIG, "target_modules": r"(\w|\w\w|\.)+[^\w.]"})
    with pytest.raises(CheckpointError, match="it has a regex that takes more than 1 s"):
        config.is_target(MODULE)
