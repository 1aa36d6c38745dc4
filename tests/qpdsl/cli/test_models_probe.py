"""`qpdsl models --probe`: what a server has and can do, and errors in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.remote.probe.known_servers import cached_capabilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.server_capabilities import capabilities_from_json
from tests.support.cli import Run
from tests.support.remote.stub_server import stub


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_url_alone_finds_the_server_its_dialect_and_its_only_model(qpdsl: Run) -> None:
    with stub("vllm") as server:
        done = qpdsl("models", "--probe", server.origin)
        id = f"vllm:{server.url}#stub"
    lines = {line[4:38].strip(): line[38:].strip() for line in done.out.splitlines() if line.startswith("    ")}
    assert done.code == Exit.OK and f'model llm = "{id}"' in done.out
    assert done.out.startswith(f"vLLM 0.32.0 at {server.url}\nmodels: stub\n")
    assert lines["output constraints"] == "JSON Schema, regex, grammar and choice"
    assert lines["prompts"] == "text and messages" and lines["context"] == "1024 tokens"
    address = Address.of(id)
    assert address is not None and cached_capabilities(address) is not None
    what = f"probing `stub` at {server.url}"
    told = [line for line in done.err.splitlines() if line.startswith(f"{what}: ")]
    assert told[0] == f"{what}: 10 of about 50 requests" and len(told) == server.counts.requests // 10


def test_a_model_id_with_a_tokenizer_as_json(qpdsl: Run) -> None:
    with stub("llama-server") as server:
        id = f"llamacpp:{server.url}#stub tokenizer=zoo/counting"
        done = qpdsl("models", "--probe", id, "--format", "json")
    said = json.loads(done.out)
    assert (done.code, said["model"], said["models"]) == (Exit.OK, id, ["stub"])
    assert said["server"] == "llama-server b1-0c1e570"
    capabilities = capabilities_from_json(said["abilities"])
    assert capabilities.endpoint == "ids" and capabilities.constraints == {"json_schema", "choice"}


def test_what_is_ignored_is_told(qpdsl: Run) -> None:
    with stub("transformers serve") as server:
        done = qpdsl("models", "--probe", f"{server.url}#stub")
    assert done.code == Exit.OK and f'model llm = "openai:{server.url}#stub"' in done.out
    assert "note: the server accepts `n` and returns one answer" in done.err


def test_several_models_are_listed(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with stub("openai") as server:
        both = {"object": "list", "data": [{"id": "stub"}, {"id": "other"}]}
        monkeypatch.setattr(server, "_models", lambda: both)
        done = qpdsl("models", "--probe", server.url)
        assert server.counts.requests == 0
    assert done.code == Exit.OK and "models: stub, other" in done.out and f"{server.url}#NAME" in done.err


def test_errors_are_one_line(qpdsl: Run) -> None:
    with stub("vllm", key="secret") as server:
        refused = qpdsl("models", "--probe", server.url)
        server.stop()
        nobody = qpdsl("models", "--probe", server.url)
        server.start()
    with stub("vllm") as server:
        missing = qpdsl("models", "--probe", f"vllm:{server.url}#nope")
        server.fail("html", times=None, path="")
        page = qpdsl("models", "--probe", server.url)
    with stub("transformers serve") as server:
        unnamed = qpdsl("models", "--probe", server.url)
    none = qpdsl("models", "--probe", "127.0.0.1")
    failed = {
        "QPDSL_API_KEYS": refused,
        "cannot be reached": nobody,
        "only `stub`": missing,
        "it is not a model server": page,
        "it is not the URL of a server": none,
        "lists no models": unnamed,
    }
    for words, done in failed.items():
        (error,) = [line for line in done.err.splitlines() if not line.startswith("probing ")]
        assert error.startswith("error: ") and words in error and done.code == Exit.MODEL, done.err
        assert not done.out


def test_without_the_extra_it_is_named(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = qpdsl("models", "--probe", "http://127.0.0.1:1/v1")
    assert done.code == Exit.USAGE and "servers need the extra `remote`" in done.err
    assert re.search(r"pip install .*\[remote\]'", done.err)
