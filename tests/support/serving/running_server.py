"""A real server over the built-in models, in a thread of its own, on a port that is free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from qpdsl.serve.http.access_log import RequestRecord
from qpdsl.serve.http.client_keys import ClientKeys
from qpdsl.serve.http.host_check import HostCheck
from qpdsl.serve.http.listening import BindAddress, Listening
from qpdsl.serve.http.routes import Limits, ServerApp
from qpdsl.serve.lenience import Lenience
from qpdsl.serve.offered_models import bare_plan, exposed_models, fingerprint_of, offered_programs
from qpdsl.serve.passthrough_model import PassthroughModel
from qpdsl.serve.served_model import ServedModel
from qpdsl.serve.served_program import ServedProgram
from qpdsl.session.prepare import PlanUse, prepare
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

_LIMITS = Limits()
_STRICT = Lenience()


@dataclass
class Running:
    """`url` ends in `/v1`; `client` speaks to it. `log` has the requests that are over.

    `told` is what the server told of its event loop, `faults` are those that it reported of itself, and `ended` says
    how it ended.
    """

    url: str
    client: httpx.Client
    session: Session
    app: ServerApp
    listening: Listening
    log: list[RequestRecord]
    told: list[str]
    ended: Future[bool]
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
    lenience: Lenience = _STRICT,
    limits: Limits = _LIMITS,
    keys: Path | None = None,
    drain_seconds: float = 5.0,
    server_timeout: float | None = None,
    shared_cache: bool = False,
    hosts: HostCheck | None = None,
    max_connections: int = 1024,
) -> Iterator[Running]:
    settings = Settings(assigned=tuple(fixed), completions="none", server_timeout=server_timeout, allow_code=True)
    offered = offered_programs(settings, targets, Surroundings(), defaults)
    plans = {one.name: prepare(one.bound, settings, PlanUse(text=True)).plan for one in offered}
    exposed = exposed_models(expose, [plan.models for plan in plans.values()])
    session = Session.of(settings, outlive_servers=True)
    for plan in [*plans.values(), *map(bare_plan, exposed.values())]:
        session.load(plan)
    models: list[ServedModel] = [ServedProgram(one.name, plans[one.name], session, None, one.fixed) for one in offered]
    models += [
        PassthroughModel(name, session.text_model(id), session.engine, fingerprint_of(id))
        for name, id in exposed.items()
    ]
    faults: list[Exception] = []
    log: list[RequestRecord] = []
    known = None if keys is None else ClientKeys(keys)
    app = ServerApp(
        models,
        limits,
        known,
        faults.append,
        lenience=lenience,
        hosts=hosts,
        shared_cache=shared_cache,
        log=log.append,
        reached=session.events.emit,
    )
    address = BindAddress(port=0)
    bound = address.bound()
    told: list[str] = []
    listening = Listening(app, session, address, bound, drain_seconds, max_connections, told.append)
    started, ended = threading.Event(), Future[bool]()

    def run() -> None:
        try:
            ended.set_result(listening.run(started.set))
        except Exception as error:
            ended.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(20)
    url = address.url(bound)
    try:
        with httpx.Client(timeout=60, trust_env=False) as client:
            yield Running(url, client, session, app, listening, log, told, ended, faults)
    finally:
        listening.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert faults == []


def events(response: httpx.Response) -> list[str]:
    """What stands behind `data: ` in a stream, in order."""
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
