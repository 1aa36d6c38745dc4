"""The settings of a GGUF file, which must all be asked for, and its position encoding in transformers' terms."""

from __future__ import annotations

import math
import struct
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader, GGUFTensor

# The factors of Llama 3's rotary frequencies, as a tensor; transformers computes them from four numbers. Gemma 4 has
# there which frequencies turn.
ROPE_FACTORS = "rope_freqs.weight"
# Those of longrope: for short texts and for long ones.
LONG_ROPE = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
# The lowest and the highest turns between which frequencies are mixed: Llama 3's, and Llama 4's.
_LLAMA3 = ((1.0, 4.0), (1.0, 1.0))
_LLAMA3_CONTEXT = 8192


class Settings:
    """The settings of a file's own family, by name; every one must be asked for."""

    def __init__(self, header: GGUFHeader) -> None:
        prefix = f"{header.architecture}."
        self.header = header
        self._left = {
            name.removeprefix(prefix): value for name, value in header.metadata.items() if name.startswith(prefix)
        }

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number above 0. Raises CheckpointError."""
        return self._whole(name, self.take(name, default))

    def alike(self, name: str, default: int | None = None) -> int:
        """A whole number above 0, given once or for each layer; 0 stands for layers without. Raises CheckpointError."""
        value = self.take(name, default)
        if isinstance(value, tuple):
            some = set(value) - {0}
            value = some.pop() if len(some) == 1 else default if not some else value
        return self._whole(name, value)

    def _whole(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(f"has `{value}` for the setting `{name}`, which must be a whole number above 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number above 0. Raises CheckpointError."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"has `{value}` for the setting `{name}`, which must be a number above 0")
        return float(value)

    def expect(self, name: str, *values: object) -> None:
        """Raises CheckpointError where the setting is there and has none of these values."""
        value = self.take(name, values[0])
        if value not in values:
            raise self.error(f"has `{value}` for the setting `{name}`, which qpdsl does not know for this family")

    def done(self) -> None:
        """Raises CheckpointError where a setting is left that nothing here knows."""
        if self._left:
            name = min(self._left)
            raise self.error(f"has the setting `{name}`, which qpdsl does not know for this family")

    def has(self, tensor: str) -> bool:
        return tensor in self.header.tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """That of a tensor, by its name in the file. Raises CheckpointError where there is none."""
        if not self.has(tensor):
            raise self.error(f"has no tensor `{tensor}`")
        return self.header.tensors[tensor].shape

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"`{self.header.path.name}` (`{self.header.architecture}`) {what}")


def rope(settings: Settings, head_dim: int, *, part: bool = False, factors: bool = True) -> dict[str, Any]:
    """The position encoding of heads of `head_dim` numbers, as `rope_parameters` of a configuration.

    `part`: whether the family may rotate a part of each head only. `factors`: whether a tensor of factors holds Llama
    3's. Raises CheckpointError for what is not known.
    """
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": settings.real("rope.freq_base", 10000.0)}
    rotated = settings.whole("rope.dimension_count", head_dim)
    if part:
        found["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise settings.error(f"rotates {rotated} of the {head_dim} numbers of a head, which is not known of its family")
    kind = settings.take("rope.scaling.type", "none")
    scale = settings.take("rope.scale_linear", 1.0)
    factor = settings.take("rope.scaling.factor", scale)
    original = settings.take("rope.scaling.original_context_length")
    attention = settings.take("rope.scaling.attn_factor", 1.0)
    for name in ("yarn_attn_factor", "yarn_ext_factor"):
        settings.expect(f"rope.scaling.{name}", 1.0)
    fast, slow = settings.take("rope.scaling.yarn_beta_fast"), settings.take("rope.scaling.yarn_beta_slow")
    if settings.has(LONG_ROPE["long_factor"]):
        return found | _long_rope(settings, original, attention)
    if attention != 1.0:
        raise settings.error(f"has `{attention}` for the setting `rope.scaling.attn_factor`, which is not known")
    if kind == "linear" or (kind == "none" and scale != 1.0):
        found |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        found |= {name: beta for name, beta in (("beta_fast", fast), ("beta_slow", slow)) if beta is not None}
    elif kind != "none":
        raise settings.error(f"has the position encoding `{kind}`, which qpdsl does not read")
    if factors and (stored := settings.header.tensors.get(ROPE_FACTORS)) is not None:
        if kind != "none":
            raise settings.error(f"has the tensor `{ROPE_FACTORS}` beside another position encoding")
        found |= _llama3(settings, stored, found["rope_theta"], head_dim)
    return found


def numbers(settings: Settings, name: str, count: int) -> list[float]:
    """A vector of float32 of the file. Raises CheckpointError where it is none, or has another length."""
    stored = settings.header.tensors.get(name)
    if stored is None or stored.type != "F32" or stored.shape != (count,):
        raise settings.error(f"has a tensor `{name}` of another shape than its heads need")
    with stored.path.open("rb") as file:
        file.seek(stored.start)
        return list(struct.unpack(f"<{count}f", file.read(stored.size)))


def _long_rope(settings: Settings, original: Any, attention: float) -> dict[str, Any]:
    names = LONG_ROPE.items()
    found = {name: numbers(settings, tensor, settings.shape(tensor)[0]) for name, tensor in names}
    if not isinstance(original, int) or original <= 0:
        raise settings.error(f"has `{original}` for the setting `rope.scaling.original_context_length`")
    # llama.cpp takes the square root that transformers computes from the two lengths from this setting.
    given = {} if attention == 1.0 else {"attention_factor": attention}
    return {"rope_type": "longrope", **found, "original_max_position_embeddings": original, **given}


def _llama3(settings: Settings, stored: GGUFTensor, theta: float, head_dim: int) -> dict[str, Any]:
    """The numbers from which transformers computes these factors. Raises CheckpointError where it computes others."""
    factors = numbers(settings, stored.name, head_dim // 2)
    if all(factor == 1.0 for factor in factors):
        return {}
    factor = round(max(factors), 4)
    for low, high in _LLAMA3:
        if all(
            abs(given - _scaled(theta ** (-2 * index / head_dim), factor, low, high)) <= 1e-4 * given
            for index, given in enumerate(factors)
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": _LLAMA3_CONTEXT,
            }
    raise settings.error(f"has factors of rotary frequencies (`{stored.name}`) that are not Llama 3's")


def _scaled(frequency: float, factor: float, low: float, high: float) -> float:
    """What Llama 3 divides a rotary frequency by."""
    turns = _LLAMA3_CONTEXT * frequency / (2 * math.pi)
    if turns > high:
        return 1.0
    if turns < low:
        return factor
    smooth = (turns - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)
