"""What was found out about servers is kept: for how long, for which server, and what a damaged file does."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.probe.known_servers import cached_capabilities, known_or_probed
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from tests.support.remote.faults import Kind
from tests.support.remote.stub_server import StubServer, stub

NAME = "servers.json"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "qpdsl" / NAME


@pytest.fixture(scope="module")
def server() -> Iterator[StubServer]:
    with stub("openai") as running:
        yield running


def known(server: StubServer, **how: Any) -> ServerCapabilities:
    return asyncio.run(known_or_probed(address(server), None, **how))


def address(server: StubServer) -> Address:
    return Address("openai", server.url, server.model)


def test_a_server_is_asked_once_a_day(kept: Path, server: StubServer) -> None:
    assert cached_capabilities(address(server)) is None
    found = known(server)
    asked = server.counts.requests
    assert known(server) == found == cached_capabilities(address(server)) and server.counts.requests == asked
    assert known(server, again=True) == found and server.counts.requests > asked
    said = json.loads(kept.read_text("utf-8"))
    (entry,) = said["servers"].values()
    entry["found"] = time.time() - 25 * 3600
    kept.write_text(json.dumps(said), "utf-8")
    asked = server.counts.requests
    assert known(server) == found and server.counts.requests > asked


@pytest.mark.parametrize("kind", ["too_many", "overloaded"])
def test_a_server_that_is_busy_is_waited_for(
    kept: Path, server: StubServer, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """For longer than one that answers nonsense: it may be busy with other runs."""
    monkeypatch.setattr("qpdsl.executor.remote.server.failures._FIRST", 0.001)
    monkeypatch.setattr("qpdsl.executor.remote.probe.probe_client._PAUSE", 0.001)
    found = known(server)
    server.fail(kind, times=7)
    assert known(server, again=True) == found


def test_what_takes_time_is_told_and_the_servers_own_dialect_before_it(kept: Path) -> None:
    with stub("llama_cpp.server") as server:
        told: list[tuple[str, int]] = []

        def tell(words: str) -> None:
            told.append((words, server.counts.requests))

        known(server, tell=tell)
        what = f"probing `stub` at {server.url}"
        better = f"{what}, which is llama_cpp.server; `llamacpp:{server.url}#stub` supports more"
        assert told[:2] == [(what, 0), (better, 0)] and told[2][0] == f"{what}: 10 of about 50 requests"
        told.clear()
        known(server, tell=tell)
        # No probe: what was found out holds for a day.
        assert [words for words, _ in told] == [f"asking {server.url} for its version"]


def test_another_version_is_asked_anew(kept: Path) -> None:
    with stub("vllm", seeds=False) as old:
        place = Address("vllm", old.url, "stub")
        assert not asyncio.run(known_or_probed(place, None)).seeds
        port = old.port
    with stub("vllm", version="0.33.0") as new:
        new.stop()
        new.port = port
        new.start()
        found = asyncio.run(known_or_probed(place, None))
    assert found.seeds and found.version == "vLLM 0.33.0"


def test_a_server_that_is_away_is_taken_to_be_what_it_was(kept: Path) -> None:
    with stub("openai") as server:
        found = known(server)
        server.stop()
        assert known(server) == found
        with pytest.raises(ModelError, match="cannot be reached"):
            known(server, again=True)
        server.start()


def damages(kept: Path) -> Iterator[bytes]:
    whole = kept.read_bytes()
    yield whole[: len(whole) // 2]
    yield b""
    yield b"[" * 100_000
    yield whole.replace(b'"greedy": true', b'"greedy": "yes"')
    yield whole.replace(b'"largest_seed": ', b'"largest_seed": -')
    yield whole.replace(b'"found": ', b'"found": 1e999, "f": ')
    yield whole.replace(b'"form": ', b'"form": 9')


def test_a_damaged_file_counts_as_none(kept: Path, server: StubServer) -> None:
    found = known(server)
    for damage in damages(kept):
        kept.write_bytes(damage)
        assert cached_capabilities(address(server)) is None
    assert known(server) == found == cached_capabilities(address(server))


def test_only_a_regular_file_is_read(kept: Path, server: StubServer) -> None:
    known(server)
    real = kept.with_suffix(".real")
    kept.rename(real)
    kept.symlink_to(real)
    assert cached_capabilities(address(server)) is None
    kept.unlink()
    os.mkfifo(kept)
    assert cached_capabilities(address(server)) is None


def test_nowhere_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: StubServer) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert known(server).seeds


def test_a_tokenizer_that_changed_is_another(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    from qpdsl.executor.remote.probe.known_servers import _keep

    place = Address("vllm", "http://127.0.0.1:1/v1", "name", str(folder))
    _keep(place, ServerCapabilities(endpoint="ids"))
    assert cached_capabilities(place) == ServerCapabilities(endpoint="ids")
    (folder / "tokenizer.json").write_text('{"a": 1}', "utf-8")
    assert cached_capabilities(place) is None
