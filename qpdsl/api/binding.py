"""What a program runs with: a session, a seed, the models that its names stand for, and how long a run may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qpdsl.arguments import ArgumentError
from qpdsl.garbage_collector import collections_paused
from qpdsl.session.setting import declared, keywords_of
from qpdsl.session.settings import RowSettings, SessionSettings

if TYPE_CHECKING:
    from qpdsl.session.session import Session

_lock = threading.Lock()
_default: Session | None = None


@dataclass(frozen=True)
class Binding:
    """What is None is not set. `row_timeout` is in seconds, `models` maps names of models to ids."""

    session: Session | None = None
    seed: int | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    row_timeout: float | None = None
    priority: int | None = None

    def over(self, other: Binding) -> Binding:
        """This binding, with the other's settings for what this one does not set."""
        names = ("session", "seed", "row_timeout", "priority")
        known: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(other, models={**other.models, **self.models}, **known)


def binding(
    session: Session | None,
    seed: int | None,
    models: Mapping[str, str] | None,
    row_timeout: float | None,
    priority: int | None,
) -> Binding:
    """The binding of what a user set. Raises ArgumentError."""
    RowSettings(seed=seed, row_timeout=row_timeout, priority=priority)
    if session is not None:
        from qpdsl.session.session import Session

        if not isinstance(session, Session):
            raise ArgumentError(f"`session` takes a `qp.Session(…)`, not a {type(session).__name__}")
    return Binding(session, seed, models or {}, row_timeout, priority)


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
                from qpdsl.session.session import Session

            _default = Session()
        return _default


@dataclass(frozen=True, kw_only=True)
class UsingArguments(SessionSettings, RowSettings):
    """What `using` takes."""

    session: Session | None = field(default=None, kw_only=False)
    models: Mapping[str, str] | None = None


@contextmanager
@keywords_of(UsingArguments)
def using(session: Session | None = None, **given: Any) -> Iterator[Session]:
    """Programs called in the block run in a session, with a seed, and with other models for the names of theirs.

    A run, or a row of `map`, that takes more than `row_timeout` seconds fails. Runs of a lower `priority` go before
    what else the session runs. A setting of a session, as `qp.Session` takes it, makes a new session. What a
    program sets itself (`program.using(…)`) takes precedence over the block's.
    """
    names = {name for name, _, _ in declared(SessionSettings)}
    settings = {name: value for name, value in given.items() if name in names and value is not None}
    if settings:
        from qpdsl.session.session import Session

        if session is not None:
            raise TypeError(f"a session and `{next(iter(settings))}`, which would make another")
        session = Session(**settings)
    own = binding(session, given.get("seed"), given.get("models"), given.get("row_timeout"), given.get("priority"))
    inner = own.over(_bound.get())
    token = _bound.set(inner)
    try:
        yield inner.session or default_session()
    finally:
        _bound.reset(token)
