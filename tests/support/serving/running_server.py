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

from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.replica.messages import ReplicaSetup
from qpdsl.executor.events.stream import EventStream
from qpdsl.serve.http.access_log import RequestRecord
from qpdsl.serve.http.client_keys import ClientKeys
from qpdsl.serve.http.host_check import HostCheck
from qpdsl.serve.http.listening import BindAddress, Listening
from qpdsl.serve.http.routes import Limits, ServerApp
from qpdsl.serve.lenience import Lenience
from qpdsl.serve.offered_models import Offer, exposed_models, offered_programs
from qpdsl.serve.replicas.replica_pool import ReplicaPool
from qpdsl.serve.replicas.request_work import RequestWork
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
    session: Session | ReplicaPool
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
    cluster: str | None = None,
) -> Iterator[Running]:
    """`cluster` has replicas answer, as the option does."""
    settings = Settings(assigned=tuple(fixed), completions="none", server_timeout=server_timeout, allow_code=True)
    offered = offered_programs(settings, targets, Surroundings(), defaults)
    plans = {one.name: prepare(one.bound, settings, PlanUse(text=True)).plan for one in offered}
    exposed = exposed_models(expose, [plan.models for plan in plans.values()])
    offer = Offer(plans, {one.name: one.fixed for one in offered}, exposed)
    told: list[str] = []
    pool = None
    if cluster is not None:
        setup = ReplicaSetup.of(RequestWork(offer), settings, outlive_servers=True)
        address = ClusterAddress.parse(cluster)
        pool = ReplicaPool(address, offer, setup, EventStream(), places=limits.running, tell=told.append)
        session: Session | ReplicaPool = pool
        models = pool.models
    else:
        session = Session.of(settings, outlive_servers=True)
        for plan in offer.plans:
            session.load(plan)
        models = offer.models(session)
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
        replicas=pool,
    )
    if pool is not None:
        pool.queued = lambda: app.admission.waiting
    place = BindAddress(port=0)
    bound = place.bound()
    listening = Listening(app, session, place, bound, drain_seconds, max_connections, told.append)
    started, ended = threading.Event(), Future[bool]()

    def run() -> None:
        try:
            ended.set_result(listening.run(started.set))
        except Exception as error:
            ended.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(20 if pool is None else 120), told
    url = place.url(bound)
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
