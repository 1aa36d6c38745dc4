"""Sessions of a test process share the weights of built-in models: loading them takes longer than most programs."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_MOST = 3


@dataclass
class _Kept:
    """A loaded model, and its last copy while a session has it."""

    model: Any
    share: float
    lent: Callable[[], object] = lambda: None

    @classmethod
    def of(cls, model: Any) -> _Kept:
        head = model.paged.panel_head
        return cls(model, 0.0 if head is None else head.planner.share)

    def lend(self) -> Any:
        """A copy with the same layers, and with nothing else that a session changes."""
        model, paged = copy.copy(self.model), copy.copy(self.model.paged)
        # A plan sets from which share of the head on all of it is read.
        paged.prefer_sparse(self.share)
        model.tokenizer, model.paged = copy.copy(model.tokenizer), paged
        self.lent = weakref.ref(paged)
        return model


_KEPT: defaultdict[object, list[_Kept]] = defaultdict(list)


def _reusing(load: Callable[..., Any]) -> Callable[..., Any]:
    """Loads a built-in model only where sessions still have all that were loaded: layers have buffers."""
    from qpdsl import zoo

    def reused(
        name: str, location: object, device: str, dtype: object, kv_type: object, kind: object, *rest: object
    ) -> Any:
        built_in = isinstance(location, Path) and location.parent == Path(zoo.__file__).parent
        if not built_in or device != "cpu" or rest[:1] != (None,):
            return load(name, location, device, dtype, kv_type, kind, *rest)
        kept = _KEPT[name, location, dtype, kv_type, kind]
        if len(kept) == _MOST and all(one.lent() for one in kept):
            # A session that has ended is part of a circle.
            gc.collect()
        free = next((one for one in kept if one.lent() is None), None)
        if free is None:
            free = _Kept.of(load(name, location, device, dtype, kv_type, kind, *rest))
            if len(kept) < _MOST:
                kept.append(free)
        return free.lend()

    return reused


@pytest.fixture(autouse=True, scope="module")
def _models_loaded_once() -> Iterator[None]:
    session: Any = sys.modules.get("qpdsl.session.session")
    if session is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "load", _reusing(session.load))
        yield
