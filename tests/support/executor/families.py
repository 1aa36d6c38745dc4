"""A tiny model with random weights of every decoder family that transformers registers (`families.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from qpdsl.executor.checkpoint.model_folder import ENCODERS

_DATA = Path(__file__).with_suffix(".toml")
_MAX_PARAMETERS = 5_000_000


@dataclass(frozen=True)
class Family:
    """A model type with what its tiny configuration changes, and what becomes of it.

    `refused`: words of the reason, None where it runs. `untried`: why transformers does not build it here.
    """

    type: str
    changes: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    untried: str | None = None


@cache
def families() -> dict[str, Family]:
    """All of them by name: the model type, or a model type and what is particular."""
    entries: dict[str, dict[str, Any]] = _data()["families"]
    return {name: Family(**{"type": name, **entry}) for name, entry in entries.items()}


@cache
def multimodal() -> dict[str, Family]:
    """Families that also see or hear and whose text runs, by model type; their encoders are small too."""
    found = {}
    for name, changes in _data()["multimodal"].items():
        encoders = dict(_encoders(CONFIG_MAPPING[name]())) if name in CONFIG_MAPPING else {}
        found[name] = Family(name, {**encoders, **changes})
    return found


def _encoders(config: PretrainedConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PretrainedConfig) and name in ENCODERS:
            fields = part.to_dict()
            small = _data()["encoder"].items()
            yield name, {key: value for key, value in small if not isinstance(fields.get(key, []), list)}


def is_release() -> bool:
    """Whether the release of transformers is that of the list; others have other families."""
    return bool(transformers.__version__ == _data()["release"])


def tiny(family: Family, auto: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """The family's model in float32, of a few layers: the same weights each time."""
    config = _shrunk(CONFIG_MAPPING[family.type](), family.changes)
    with torch.device("meta"):
        parameters = auto.from_config(config, dtype=torch.float32).num_parameters()
    assert parameters < _MAX_PARAMETERS, f"{family.type} has {parameters} parameters"
    torch.manual_seed(0)
    # Older releases of transformers give these an attention that leaves their soft cap out.
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        # Some start so small, or so alike, that what they do could not be seen in a logit.
        if parameter.dim() >= 2 and parameter.std() < 0.1:
            parameter.data.normal_(0, 0.25, generator=generator)
        elif parameter.dim() == 1:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    return model


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_DATA.read_text("utf-8"))


def _shrunk(config: PretrainedConfig, changes: dict[str, Any]) -> PretrainedConfig:
    """The configuration with the small numbers of `[small]` wherever it has such a field, and with `changes`."""
    fields = config.to_dict()
    names = {*fields, *config.attribute_map}
    values: dict[str, Any] = {name: value for name, value in _data()["small"].items() if name in names}
    if "kv_lora_rank" in names:
        values.update({name: value for name, value in _data()["latent"].items() if name in names})
    if fields.get("head_dim") is None:
        values.pop("head_dim", None)
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            values[name] = _shrunk(part, changes.get(name, {}))
    if isinstance(kinds := fields.get("layer_types"), list) and "layer_types" not in changes:
        distinct = list(dict.fromkeys(kinds))
        layers = changes.get("num_hidden_layers", max(2, len(distinct)))
        values["layer_types"] = [distinct[layer % len(distinct)] for layer in range(layers)]
        values["num_hidden_layers"] = layers
    nested = {name for name in values if isinstance(values[name], PretrainedConfig)}
    values.update({name: None if value == "none" else value for name, value in changes.items() if name not in nested})
    return type(config)(**values)
