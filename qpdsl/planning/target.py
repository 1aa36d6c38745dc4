"""What a plan is to run on, as far as it is known before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qpdsl import zoo
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.grammar.model_id import base_of


@dataclass(frozen=True, slots=True)
class Target:
    """A device by its kind ("cpu", "cuda", "cuda:1"…). `dtype` and `threads` None: as `Session` chooses them.

    `exit_heads` are names of models with the folders of exit heads for them; the empty name is for all.
    `router`: who decides there how the heads of steps are computed, as `Session` takes it; None where nobody does.
    """

    kind: str = "cpu"
    dtype: str | None = None
    threads: int | None = None
    router: str | None = None
    exit_heads: tuple[tuple[str, str], ...] = ()

    @property
    def keeps_stored_weights(self) -> bool:
        """Whether the weights of a GGUF file or of a quantized checkpoint stay as they are stored."""
        return self.kind == "cpu" and self.dtype is None

    def computes_in(self, models: Iterable[str]) -> str | None:
        """The type that all models compute in here; None where it is not known or not the same for all."""
        if self.dtype is not None or self.kind == "cpu":
            return self.dtype or "float32"
        types = {_own_dtype(model) for model in models}
        return types.pop() if len(types) == 1 else None


def _own_dtype(model: str) -> str | None:
    """The type that a checkpoint was saved in, by its configuration; None where that is not on this machine.

    What is in a GGUF file becomes bfloat16 where it does not stay as it is.
    """
    from huggingface_hub import try_to_load_from_cache

    if base_of(model).lower().endswith(SUFFIX):
        return "bfloat16"
    try:
        folder = zoo.path(model) if model.startswith("zoo/") else Path(base_of(model)).expanduser()
        config = folder / "config.json" if folder.is_dir() else try_to_load_from_cache(base_of(model), "config.json")
        data = json.loads(Path(config).read_text("utf-8")) if isinstance(config, str | Path) else {}
        dtype = data.get("dtype") or data.get("torch_dtype")
    except (OSError, RuntimeError, ValueError, AttributeError):
        return None
    return dtype if isinstance(dtype, str) else None
