"""A real server over the built-in models, in a thread of its own, on a port that is free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from qpdsl.planning.planning import Planning
from qpdsl.planning.target import Target
from qpdsl.serve.exposed.exposed_model import ExposedModel
from qpdsl.serve.http.bind_address import BindAddress
from qpdsl.serve.http.client_keys import ClientKeys
from qpdsl.serve.http.listening import Listening
from qpdsl.serve.http.routes import Limits, ServerApp
from qpdsl.serve.offered_models import bare_plan, exposed_models, fingerprint_of, offered_programs
from qpdsl.serve.served_model import ServedModel
from qpdsl.serve.served_program import ServedProgram
from qpdsl.session import Session
from qpdsl.sources.surroundings import Surroundings

_LIMITS = Limits()


@dataclass
class Running:
    """`url` ends in `/v1`; `client` speaks to it. `faults` are those that the server reported of itself."""

    url: str
    client: httpx.Client
    session: Session
    app: ServerApp
    listening: Listening
    faults: list[Exception] = field(default_factory=list)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"{self.url}/{path}", json=body)

    def chat(self, model: str, question: str, **more: Any) -> httpx.Response:
        """The answer to one user turn."""
        turns = [{"role": "user", "content": question}]
        return self.post("chat/completions", model=model, messages=turns, **more)

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")


@contextlib.contextmanager
def running(
    targets: Sequence[str],
    *,
    fixed: Sequence[str] = (),
    defaults: Sequence[str] = (),
    expose: Sequence[str] = (),
    ignored: Sequence[str] = (),
    limits: Limits = _LIMITS,
    keys: Path | None = None,
    drain_seconds: float = 5.0,
    server_timeout: float | None = None,
) -> Iterator[Running]:
    offered = offered_programs(targets, Surroundings(), fixed, defaults)
    plans = {one.name: one.plan(Planning(), Target()) for one in offered}
    exposed = exposed_models(expose, plans.values())
    session = Session(completions="none", server_timeout=server_timeout, outlive_servers=True)
    for plan in [*plans.values(), *map(bare_plan, exposed.values())]:
        session.load(plan)
    models: list[ServedModel] = [
        ServedProgram(one.name, plans[one.name], session, None, one.fixed, ignored) for one in offered
    ]
    models += [
        ExposedModel(name, session.text_model(id), session.engine, fingerprint_of(id)) for name, id in exposed.items()
    ]
    faults: list[Exception] = []
    app = ServerApp(models, limits, None if keys is None else ClientKeys(keys), faults.append)
    address = BindAddress(port=0)
    bound = address.bound()
    listening, started = Listening(app, session, address, bound, drain_seconds), threading.Event()
    thread = threading.Thread(target=listening.run, args=(started.set,), daemon=True)
    thread.start()
    assert started.wait(20)
    url = address.url(bound)
    try:
        with httpx.Client(timeout=60, trust_env=False) as client:
            yield Running(url, client, session, app, listening, faults)
    finally:
        listening.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert faults == []


def events(response: httpx.Response) -> list[str]:
    """What stands behind `data: ` in a stream, in order."""
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
