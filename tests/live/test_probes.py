"""Real servers answer the probe as it is recorded, so the stubs and the table of the documents are still right.

`QPDSL_REGENERATE=1 pytest -m live tests/live/test_probes.py` records anew what they answer.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.remote.probe.known_servers import probed
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, capabilities_json
from qpdsl.model_location import locate_tokenizer
from tests.live.servers import KINDS, Server
from tests.support.remote.recordings import FOLDER, NAMES, recording

pytestmark = pytest.mark.live

# The dialect in which most of a server can be used.
DIALECTS = {
    "vllm": "vllm",
    "vllm thinking": "vllm",
    "llama-server": "llamacpp",
    "llama_cpp.server": "llamacpp",
    "transformers serve": "openai",
}


def answered(server: Server, dialect: str, *, ids: bool) -> ServerCapabilities:
    sign = f" tokenizer={server.tokenizer}" if ids else ""
    found = asyncio.run(probed(f"{dialect}:{server.root}/v1#{server.name}{sign}", locate_tokenizer)).capabilities
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_server_answers_as_it_is_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recorded = recording(name)
    server = KINDS[recorded.kind](tmp_path)
    server.start()
    try:
        found = {way: answered(server, DIALECTS[recorded.kind], ids=way == "ids") for way in recorded.probes}
    finally:
        server.kill()
    if os.environ.get("QPDSL_REGENERATE"):
        file = FOLDER / f"{name}.json"
        said = json.loads(file.read_text("utf-8"))
        said["probes"] = {way: capabilities_json(capabilities) for way, capabilities in found.items()}
        file.write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", "utf-8")
    for way, capabilities in recording(name).probes.items():
        # Another version is none of its capabilities.
        assert replace(found[way], version="") == replace(capabilities, version="")
