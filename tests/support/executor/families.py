"""A tiny model with random weights of every decoder family that transformers registers (`families.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

_DATA = Path(__file__).with_suffix(".toml")
_MOST_PARAMETERS = 5_000_000


@dataclass(frozen=True)
class Family:
    """A model type, what its tiny configuration changes, and whether it runs. `reason`: words of the refusal.

    `always`: it is tried in every run of the tests, as the cheapest of its mechanism.
    """

    name: str
    changes: dict[str, Any]
    outcome: Literal["equal", "refused"]
    reason: str
    always: bool


@cache
def families() -> dict[str, Family]:
    """All of them, by name."""
    entries = _data()["families"]
    return {
        name: Family(
            name,
            entry.get("changes", {}),
            "refused" if "refused" in entry else "equal",
            entry.get("refused", ""),
            entry.get("always", False),
        )
        for name, entry in entries.items()
    }


def tiny(family: Family) -> PreTrainedModel:
    """The family's model in float32, of a few layers: the same weights each time."""
    config = _shrunk(CONFIG_MAPPING[family.name](), family.changes)
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config, dtype=torch.float32).num_parameters()
    assert parameters < _MOST_PARAMETERS, f"{family.name} has {parameters} parameters"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
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
        values["layer_types"] = distinct * 2 if len(distinct) == 1 else distinct
        values["num_hidden_layers"] = len(values["layer_types"])
    nested = {name for name in values if isinstance(values[name], PretrainedConfig)}
    values.update({name: None if value == "none" else value for name, value in changes.items() if name not in nested})
    return type(config)(**values)
