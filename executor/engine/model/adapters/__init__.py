"""What some families' attention does that transformers' attention interface does not tell.

The interface gives queries, keys and values, and few more arguments. `told.py` has what is taken from configurations:
windows and chunks that stand only in masks. Modules that do more, or call no interface, get a method of ours in place
of the one that does it, by the name of their class: own softmaxes (`softmax.py`), ALiBi (`alibi.py`), what depends on
positions (`positions.py`), latent vectors (`latent.py`). Nothing here is trusted: the probe compares logits after it
as for every model.
"""

from __future__ import annotations

import torch

from qpdsl.executor.engine.model.adapters import alibi, latent, positions, softmax
from qpdsl.executor.engine.model.adapters.attend import Attend

_ADAPTERS = {**softmax.ADAPTERS, **alibi.ADAPTERS, **positions.ADAPTERS}


def adapt(model: torch.nn.Module, attend: Attend) -> None:
    """Has attention modules of such families call `attend`. Raises LookupError where a module is not as expected."""
    for module in list(model.modules()):
        adapter = _ADAPTERS.get(type(module).__name__)
        if adapter is not None:
            adapter(module, attend)
        elif hasattr(module, "expand_kv"):
            latent.adapt(module)
        positions.keep_short(module)
