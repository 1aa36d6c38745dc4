"""What a program runs with: a session, a seed, and the models that its names stand for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qpdsl.arguments import ArgumentError
from qpdsl.settings import check_whole

if TYPE_CHECKING:
    from qpdsl.executor.engine.memory.kv_cache import KVType
    from qpdsl.session import Session

_lock = threading.Lock()
_default: Session | None = None


@dataclass(frozen=True)
class Binding:
    """`session` and `seed` are None where they are not set. `models` maps names of models to ids."""

    session: Session | None = None
    seed: int | None = None
    models: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Binding) -> Binding:
        """This binding, with the other's settings for what this one does not set."""
        session = self.session if self.session is not None else other.session
        seed = self.seed if self.seed is not None else other.seed
        return Binding(session, seed, {**other.models, **self.models})


def binding(session: Session | None, seed: int | None, models: Mapping[str, str] | None) -> Binding:
    """The binding of a session, a seed and models that a user set. Raises ArgumentError."""
    if seed is not None:
        check_whole("seed", seed)
    if session is not None:
        from qpdsl.session import Session

        if not isinstance(session, Session):
            raise ArgumentError(f"`session` takes a `qp.Session(…)`, not a {type(session).__name__}")
    return Binding(session, seed, models or {})


_bound: ContextVar[Binding] = ContextVar("bound", default=Binding())  # noqa: B039


def bound() -> Binding:
    """The binding of the `with qp.using(…)` blocks around the caller."""
    return _bound.get()


def default_session() -> Session:
    """The session of all programs that have no session of their own, so that models load once."""
    global _default
    with _lock:
        if _default is None:
            from qpdsl.session import Session

            _default = Session()
        return _default


@contextmanager
def using(
    session: Session | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    kv_type: KVType | None = None,
    kv_bytes: int | str | None = None,
    threads: int | None = None,
    deterministic: bool | None = None,
    compile: bool | None = None,
    seed: int | None = None,
    models: Mapping[str, str] | None = None,
) -> Iterator[Session]:
    """Programs called in the block run in a session, with a seed, and with other models for the names of theirs.

    A setting of a session, as `qp.Session` takes it, makes a new session. A seed or models that a program sets itself
    (`program.using(…)`) take precedence over those of the block.
    """
    known = {
        "device": device,
        "dtype": dtype,
        "kv_type": kv_type,
        "kv_bytes": kv_bytes,
        "threads": threads,
        "deterministic": deterministic,
        "compile": compile,
    }
    settings = {name: value for name, value in known.items() if value is not None}
    if settings:
        from qpdsl.session import Session

        if session is not None:
            raise TypeError(f"a session and `{next(iter(settings))}`, which would make another")
        session = Session(**settings)  # type: ignore[arg-type]
    inner = binding(session, seed, models).over(_bound.get())
    token = _bound.set(inner)
    try:
        yield inner.session or default_session()
    finally:
        _bound.reset(token)
