"""What a program runs with: a session, a seed, the models that its names stand for, and how long a run may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.arguments import ArgumentError
from qpdsl.errors import naming_keywords
from qpdsl.garbage_collector import collections_paused
from qpdsl.settings import check_timeout, check_whole

if TYPE_CHECKING:
    from qpdsl.executor.engine.memory.kv_cache import KVType
    from qpdsl.session import Session

_lock = threading.Lock()
_default: Session | None = None


@dataclass(frozen=True)
class Binding:
    """`session`, `seed` and `row_timeout`, in seconds, are None where not set. `models` maps names of models to ids."""

    session: Session | None = None
    seed: int | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    row_timeout: float | None = None

    def over(self, other: Binding) -> Binding:
        """This binding, with the other's settings for what this one does not set."""
        session = self.session if self.session is not None else other.session
        seed = self.seed if self.seed is not None else other.seed
        row_timeout = self.row_timeout if self.row_timeout is not None else other.row_timeout
        return Binding(session, seed, {**other.models, **self.models}, row_timeout)


def binding(
    session: Session | None, seed: int | None, models: Mapping[str, str] | None, row_timeout: float | None
) -> Binding:
    """The binding of what a user set. Raises ArgumentError."""
    if seed is not None:
        check_whole("seed", seed)
    check_timeout(row_timeout)
    if session is not None:
        from qpdsl.session import Session

        if not isinstance(session, Session):
            raise ArgumentError(f"`session` takes a `qp.Session(…)`, not a {type(session).__name__}")
    return Binding(session, seed, models or {}, row_timeout)


_bound: ContextVar[Binding] = ContextVar("bound", default=Binding())  # noqa: B039


def bound() -> Binding:
    """The binding of the `with qp.using(…)` blocks around the caller."""
    return _bound.get()


def default_session() -> Session:
    """The session of all programs that have no session of their own, so that models load once."""
    global _default
    with _lock:
        if _default is None:
            with collections_paused():
                from qpdsl.session import Session

            _default = Session()
        return _default


@contextmanager
@naming_keywords
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
    router: str | None = None,
    exit_heads: Mapping[str, str | Path] | None = None,
    shadow: float | None = None,
    allow_code: bool | None = None,
    share_samples: bool | None = None,
    completions: str | Path | None = None,
    max_tokens_total: int | None = None,
    max_cost: float | None = None,
    prices: str | Path | None = None,
    server_timeout: float | None = None,
    seed: int | None = None,
    models: Mapping[str, str] | None = None,
    row_timeout: float | None = None,
) -> Iterator[Session]:
    """Programs called in the block run in a session, with a seed, and with other models for the names of theirs.

    A run, or a row of `map`, that takes more than `row_timeout` seconds fails. A setting of a session, as `qp.Session`
    takes it, makes a new session. What a program sets itself (`program.using(…)`) takes precedence over the block's.
    """
    known = {
        "device": device,
        "dtype": dtype,
        "kv_type": kv_type,
        "kv_bytes": kv_bytes,
        "threads": threads,
        "deterministic": deterministic,
        "compile": compile,
        "router": router,
        "exit_heads": exit_heads,
        "shadow": shadow,
        "allow_code": allow_code,
        "share_samples": share_samples,
        "completions": completions,
        "max_tokens_total": max_tokens_total,
        "max_cost": max_cost,
        "prices": prices,
        "server_timeout": server_timeout,
    }
    settings = {name: value for name, value in known.items() if value is not None}
    if settings:
        from qpdsl.session import Session

        if session is not None:
            raise TypeError(f"a session and `{next(iter(settings))}`, which would make another")
        session = Session(**settings)  # type: ignore[arg-type]
    inner = binding(session, seed, models, row_timeout).over(_bound.get())
    token = _bound.set(inner)
    try:
        yield inner.session or default_session()
    finally:
        _bound.reset(token)
