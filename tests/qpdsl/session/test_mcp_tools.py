"""Tools of real MCP servers, over stdio and over HTTP, by the package `mcp`."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the package `mcp` is not installed")

from qpdsl.errors import UsageError
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.tools import CallableTool
from qpdsl.session.mcp_tools import mcp_tool

SERVER = '''
import sys, time
from mcp.server import MCPServer

server = MCPServer("sums")

@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@server.tool()
def fail(a: int) -> str:
    """Fails."""
    raise ValueError("never")

@server.tool()
def slow(a: int) -> int:
    """Takes long."""
    time.sleep(5)
    return a

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
'''


def answers(tool: CallableTool, *values: int, seconds: float = 20.0) -> list[object]:
    async def all_of() -> list[object]:
        asked = (tool.answer({"a": value}, seconds, RowClock()) for value in values)
        return [answer.value for answer in await asyncio.gather(*asked)]

    return asyncio.run(all_of())


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER, "utf-8")
    return path


@pytest.fixture
def served(script: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, str(script), str(port)], stdout=nowhere, stderr=nowhere)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp", process
    process.kill()
    process.wait()


def test_a_server_that_is_started_answers_all_rows(script: Path) -> None:
    place = f"stdio {sys.executable} {script}"
    tool = mcp_tool("add", place, None)
    assert tool.schema["properties"] == {"a": {"type": "integer"}, "b": {"default": 1, "type": "integer"}}
    assert (tool.returns, tool.description, tool.schema["required"]) == ("int", "Add two numbers.", ["a"])
    assert answers(tool, *range(8)) == [*range(1, 9)]
    assert str(answers(mcp_tool("x", f"{place} #fail", None), 1)[0]).startswith("error: ")
    assert answers(mcp_tool("slow", place, None), 1, seconds=0.3) == ["error: `slow` took more than 0.3 s"]
    assert answers(tool, 4) == [5]
    with pytest.raises(UsageError, match="has no tool `sub`"):
        mcp_tool("sub", place, None)


def test_a_server_over_http_that_dies_fails_its_calls_alone(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, process = served
    tool = mcp_tool("add", f"{address}#add", None)
    assert answers(tool, 1, 2) == [2, 3]
    process.kill()
    process.wait()
    dead = answers(tool, 1, 2)
    assert all(str(answer).startswith("error: ") for answer in dead)
    assert str(answers(tool, 3)[0]).startswith("error: ")


def test_an_address_where_nothing_is_says_so() -> None:
    with pytest.raises(UsageError, match="does not answer"):
        mcp_tool("add", "http://127.0.0.1:9/mcp#add", None)
