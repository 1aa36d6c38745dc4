"""The models of a session that are on servers: what these can do, and one engine for all of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.missing_features import missing_features
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, capabilities_json
from qpdsl.executor.remote.spending import Spending
from qpdsl.executor.requests.request import Calls
from qpdsl.planner.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from qpdsl.executor.remote.remote_engine import RemoteCounts, RemoteEngine
    from qpdsl.executor.remote.remote_model import RemoteTextModel
    from qpdsl.executor.remote.spending import Meter

T = TypeVar("T")


class Servers:
    """Finds out about servers, makes text models of what is on them, and keeps within what may be spent.

    `locate` says where the tokenizer of an address lies, None where only its server knows it. `tell` gets notes for the
    user, and `changed` is called when requests to servers have come or gone. `outlives`, `on_report`: see
    `RemoteEngine`.
    """

    def __init__(
        self,
        spending: Spending,
        locate: Callable[[Address], Path | str | None],
        tell: Callable[[str], None] | None = None,
        changed: Callable[[], None] = lambda: None,
        *,
        outlives: bool = False,
        on_report: Callable[[str, RemoteCounts], None] | None = None,
    ) -> None:
        self.spending = spending
        self._outlives = outlives
        self._locate = locate
        self._tell = tell
        self._changed = changed
        self._on_report = on_report
        self._engine: RemoteEngine | None = None
        self._meter: Meter | None = None
        self._addresses: dict[str, Address] = {}
        self._capabilities: dict[str, ServerCapabilities] = {}
        self._models: dict[str, RemoteTextModel] = {}

    @property
    def engine(self) -> RemoteEngine:
        """The engine that serves all of them. Raises ModelError, from `load`, where its files cannot be used."""
        assert self._engine is not None
        return self._engine

    def load(self, model: str, slow: Callable[[str], None] | None = None) -> RemoteTextModel:
        """The text model of an id; `slow` is told what takes long for once. Asks a server that is not known yet.

        Raises ModelError.
        """
        address = Address.of(model)
        assert address is not None
        _check_library(model)
        from qpdsl.executor.remote.remote_model import text_model

        # What is wrong with the files and bounds is told before anything is sent.
        if self._engine is None:
            self._engine = self._made_engine(model)
        if self._meter is not None:
            try:
                self._meter.check((*(other.name for other in self._addresses.values()), address.name))
            except ValueError as error:
                raise ModelError(model, str(error)) from error
        place = self._locate(address)
        capabilities = self.capabilities_of(model, slow)
        text = text_model(model, address, capabilities, place, slow)
        self._engine.add(model, address, capabilities, text)
        self._addresses[model], self._capabilities[model], self._models[model] = address, capabilities, text
        return text

    def capabilities_of(self, model: str, tell: Callable[[str], object] | None = None) -> ServerCapabilities:
        """What the server of a model can do: as it is known, or else as it answers now, which `tell` is told.

        Raises ModelError.
        """
        address = Address.of(model)
        assert address is not None
        _check_library(model)
        from qpdsl.executor.remote.probe.known_servers import known_or_probed

        how: dict[str, Any] = {"patience": self.spending.patience} | ({} if tell is None else {"tell": tell})
        return _finished(known_or_probed(address, self._locate(address), **how))

    def check(self, plan: PhysicalPlan) -> None:
        """Raises ModelError where a plan needs what the servers of its models were not seen to do."""
        for missing in missing_features(plan, self._capabilities):
            raise missing.error

    def score_with(self, model: str, kind: str) -> None:
        """Makes a verifier of a loaded model. Raises ModelError where its server gives nothing to score by."""
        from qpdsl.executor.remote.remote_model import remote_verifier

        text, address = self._models[model], self._addresses[model]
        if text.verifier is None:
            text.verifier = remote_verifier(address, kind, text.tokenizer, text.padding, self._capabilities[model])

    def digest(self, model: str) -> str:
        """What a run depends on of a loaded model: its address, its server's version, and what that was seen to do."""
        address, capabilities = self._addresses[model], self._capabilities[model]
        known = {**capabilities_json(capabilities), "notes": None}
        text = f"{address.dialect}:{address.url}#{address.name}\0{json.dumps(known, sort_keys=True)}"
        return f"{capabilities.version or 'a server'} {blake2b(text.encode(), digest_size=16).hexdigest()}"

    @property
    def calls(self) -> dict[str, Calls]:
        """What was asked of servers by now, by the ids of the models."""
        engine = self._engine
        return {} if engine is None else {model: engine.counts(model).calls for model in self._addresses}

    @property
    def reached(self) -> str | None:
        """Which bound is reached, with all that was spent by now, in words; None where none is."""
        return None if self._meter is None else self._meter.reached

    def _made_engine(self, model: str) -> RemoteEngine:
        from qpdsl.executor.remote.completion_store import CompletionStore, StoreError
        from qpdsl.executor.remote.remote_engine import RemoteEngine
        from qpdsl.executor.remote.spending import Meter, Prices

        spending = self.spending
        try:
            prices = None if spending.prices is None else Prices.read(spending.prices)
            self._meter = Meter(spending.max_tokens, spending.max_cost, prices)
            store = None if spending.completions is None else CompletionStore(spending.completions)
        except StoreError as error:
            if spending.named:
                raise ModelError(model, str(error)) from error
            # Nobody named that file.
            store = None
            if self._tell is not None:
                self._tell(str(error))
        except ValueError as error:
            raise ModelError(model, str(error)) from error
        return RemoteEngine(
            store,
            self._meter,
            patience=spending.patience,
            outlives=self._outlives,
            tell=self._tell,
            changed=self._changed,
            on_report=self._on_report,
        )


def _check_library(model: str) -> None:
    """Raises ModelError where the library of the extra is not installed."""
    if find_spec("httpx") is None:
        raise ModelError(model, "servers need the extra `remote`: `pip install 'qpdsl[remote]'`")


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in an event loop of its own, whether or not one runs here."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="qpdsl asks a server")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
