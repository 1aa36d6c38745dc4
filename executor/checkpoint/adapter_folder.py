"""An adapter folder in PEFT's format: a configuration and safetensors, checked before anything of them is loaded.

The configuration says which layers the adapter changes, and by how much: LoRA (Hu et al., 2021, section 4) adds
(alpha / r)·B·A to a weight. The settings mean what PEFT 0.21 takes them for (`peft/tuners/lora/config.py`,
`check_target_module_exists`, `get_pattern_key`). A setting that is not known here could change the weights, so it is
refused unless it is off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.model_folder import content, is_there
from qpdsl.executor.checkpoint.name_pattern import check_pattern, matched
from qpdsl.executor.checkpoint.safe_files import parsed, tensor_shapes

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# All linear layers but the output layer, in the place of names.
ALL_LINEAR = "all-linear"
# Settings that say how an adapter was trained or made, and not what it does to the weights.
_OF_TRAINING = frozenset(
    {
        "auto_mapping",
        "corda_config",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
        # The type of the layer decides it (as in PEFT).
        "fan_in_fan_out",
    }
)
# The ways to begin training that leave the base weights as they are; others begin by changing them too.
_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class AdapterFolder:
    """The two files of an adapter, each in the folder itself or, in a snapshot of the hub, in that repository's cache.

    `shapes` gives the shape of each tensor by name, as the file itself says. `origin` is what the user calls it.
    """

    path: Path
    origin: str
    config: LoraConfig
    shapes: Mapping[str, tuple[int, ...]]
    files: tuple[str, ...] = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)

    @classmethod
    def of(cls, model: str, path: Path, origin: str | None = None) -> AdapterFolder:
        """Checks a folder; `model` is what the user calls the model that it is for. Raises ModelError."""
        origin = origin or str(path)
        try:
            return cls._checked(path, origin)
        except CheckpointError as error:
            raise adapter_error(model, origin, str(error)) from error
        except OSError as error:
            file = f"`{error.filename}` " if error.filename else "its files "
            raise adapter_error(model, origin, f"{file}cannot be read: {error.strerror or error}") from error

    @classmethod
    def _checked(cls, path: Path, origin: str) -> AdapterFolder:
        if not path.exists():
            raise CheckpointError("there is no such folder")
        if not path.is_dir():
            raise CheckpointError("it is a file, not an adapter folder")
        if not is_there(path, ADAPTER_CONFIG):
            raise CheckpointError(f"it has no {ADAPTER_CONFIG}, so it is no adapter in PEFT's format")
        config = LoraConfig.of(parsed(ADAPTER_CONFIG, content(path, ADAPTER_CONFIG)))
        if not is_there(path, ADAPTER_WEIGHTS):
            other = "; it has weights in another format, which can carry code: save it as safetensors"
            has_other = (path / "adapter_model.bin").exists()
            raise CheckpointError(f"it has no {ADAPTER_WEIGHTS}{other if has_other else ''}")
        shapes = tensor_shapes(path / ADAPTER_WEIGHTS)
        if not shapes:
            raise CheckpointError(f"its {ADAPTER_WEIGHTS} holds no tensors")
        return cls(path, origin, config, shapes)


def adapter_error(model: str, adapter: str, reason: str) -> ModelError:
    """What is wrong with an adapter, of the model that it is for."""
    return ModelError(model, f"adapter `{adapter}`: {reason}")


@dataclass(frozen=True)
class LoraConfig:
    """The settings of an adapter. The names of modules are those of the whole causal language model."""

    base: str | None
    rank: int
    alpha: float
    rank_stabilized: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    saved: tuple[str, ...]
    layers: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    bias: str
    with_bias: bool
    with_magnitudes: bool
    tied: bool
    token_rows: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> LoraConfig:
        """Reads the content of the file. Raises CheckpointError, which names the setting that is refused."""
        rest = _Settings(data)
        kind = rest.take("peft_type")
        if kind != "LORA":
            kind_is = f"is of PEFT's type {kind}" if isinstance(kind, str) else "names no `peft_type`"
            raise CheckpointError(f"it {kind_is}, and only LORA can be merged into the weights")
        beginning = rest.take("init_lora_weights", True)
        if not any(beginning is known or beginning == known for known in _BEGINNINGS):
            raise CheckpointError(
                f"it is for weights that were changed before the training (`init_lora_weights` {beginning!r}); convert "
                "it to a plain LoRA adapter (PEFT's `path_initial_model_for_weight_conversion`)"
            )
        targets = rest.names("target_modules")
        config = cls(
            base=rest.text("base_model_name_or_path"),
            rank=_whole("r", rest.take("r", 8)),
            alpha=_number("lora_alpha", rest.take("lora_alpha", 8)),
            rank_stabilized=rest.flag("use_rslora"),
            ranks={name: _whole("rank_pattern", value) for name, value in rest.mapping("rank_pattern").items()},
            alphas={name: _number("alpha_pattern", value) for name, value in rest.mapping("alpha_pattern").items()},
            targets=targets,
            excluded=rest.names("exclude_modules"),
            saved=_listed("modules_to_save", rest.names("modules_to_save")),
            layers=rest.layers("layers_to_transform"),
            layers_pattern=_listed("layers_pattern", rest.names("layers_pattern")),
            bias=rest.text("bias") or "none",
            with_bias=rest.flag("lora_bias"),
            with_magnitudes=rest.flag("use_dora"),
            tied=rest.flag("ensure_weight_tying"),
            token_rows=rest.token_rows("trainable_token_indices"),
        )
        if config.bias not in ("none", "all", "lora_only"):
            raise CheckpointError(f"its `bias` is {config.bias!r}, and not `none`, `all` or `lora_only`")
        if config.layers is not None and isinstance(targets, str):
            raise CheckpointError("its `layers_to_transform` needs a list of `target_modules`")
        rest.check_off()
        patterns = [*config.ranks, *config.alphas, *config.layers_pattern]
        patterns += [names for names in (targets, config.excluded) if isinstance(names, str)]
        for pattern in patterns:
            check_pattern(pattern)
        return config

    def is_target(self, module: str) -> bool:
        """Whether a module gets the two matrices. `ALL_LINEAR` is no pattern: the caller knows which those are."""
        within = f".{module}."
        if _named(self.excluded, module) or any(f".{name}." in within for name in self.saved):
            return False
        return self.targets == ALL_LINEAR or (_named(self.targets, module) and self._in_layers(module))

    def is_saved(self, module: str) -> bool:
        """Whether a module's weights come whole."""
        return any(module.endswith(name) for name in self.saved)

    def rank_of(self, module: str) -> int:
        return self.ranks.get(_pattern(self.ranks, module), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B·A: alpha / r, or alpha / sqrt(r) as in rsLoRA (Kalajdzievski, 2023, section 3)."""
        rank = self.rank_of(module)
        alpha = self.alphas.get(_pattern(self.alphas, module), self.alpha)
        return alpha / math.sqrt(rank) if self.rank_stabilized else alpha / rank

    def _in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in self.layers_pattern] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for pattern in patterns if (match := matched(pattern, module))), None)
        return found is not None and int(found[1]) in self.layers


class _Settings:
    """The settings that nobody has asked for yet."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._rest = {name: value for name, value in data.items() if name not in _OF_TRAINING}

    def take(self, name: str, default: Any = None) -> Any:
        return self._rest.pop(name, default)

    def flag(self, name: str) -> bool:
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise CheckpointError(f"its `{name}` is neither true nor false")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if not isinstance(value, str | None):
            raise CheckpointError(f"its `{name}` is no text")
        return value

    def names(self, name: str) -> str | tuple[str, ...]:
        """A regex, or a list of names."""
        value = self.take(name) or []
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
            raise CheckpointError(f"its `{name}` is neither a text nor a list of names")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.take(name) or {}
        if not isinstance(value, dict):
            raise CheckpointError(f"its `{name}` is no mapping of names to numbers")
        return value

    def layers(self, name: str) -> tuple[int, ...] | None:
        value = self.take(name)
        return None if value is None or value == [] else _indices(name, [value] if isinstance(value, int) else value)

    def token_rows(self, name: str) -> Mapping[str, tuple[int, ...]]:
        """The ids of the tokens whose rows come whole, by the name of the module; "" for the input embeddings."""
        value = self.take(name)
        entries = {"": value} if isinstance(value, list) else value or {}
        if not isinstance(entries, dict):
            raise CheckpointError(f"its `{name}` is neither a list of token ids nor a mapping of names to such lists")
        return {module: _indices(name, ids) for module, ids in entries.items()}

    def check_off(self) -> None:
        """Raises CheckpointError where a setting that nobody asked for is on."""
        on = sorted(name for name, value in self._rest.items() if value)
        if on:
            raise CheckpointError(f"its setting `{on[0]}` is not supported: the adapter may do more than LoRA does")


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"its `{name}` is {value!r}, and not a whole number above 0")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise CheckpointError(f"its `{name}` is {value!r}, and not a number")
    return float(value)


def _indices(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise CheckpointError(f"its `{name}` is no list of whole numbers from 0")
    return tuple(values)


def _listed(name: str, names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _named(names: str | tuple[str, ...], module: str) -> bool:
    """Whether a module is one of those that a regex matches whole, or that names end in."""
    if isinstance(names, str):
        return bool(names) and matched(names, module, whole=True) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _pattern(patterns: Iterable[str], module: str) -> str:
    return next((pattern for pattern in patterns if matched(rf"(.*\.)?({pattern})$", module)), module)
