"""Tools of MCP servers, by the official client: each server has a thread and an event loop of its own.

A client over HTTP whose server dies ends with all that shares its task group, so nothing does. The connection stays
open for the next calls; one that broke is made anew by the next call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError as Lost
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from qpdsl.errors import UsageError, installing, shorten
from qpdsl.executor.runtime.instance.tools import CallableTool, Care, ToolFailed
from qpdsl.executor.runtime.instance.user_code import named

_STDIO = "stdio "
# Seconds that a server has to start and to list its tools; and to end.
_OPENING, _CLOSING = 30.0, 3.0
_WATCH = 1.0
_PLAIN = {"string": "text", "integer": "int", "number": "float", "boolean": "bool"}
_servers: dict[str, _Server] = {}


def mcp_tool(name: str, place: str, care: Care | None) -> CallableTool:
    """The tool that a program calls `name`: `URL#TOOL`, or `stdio COMMAND ARGUMENT… #TOOL`. Raises UsageError.

    The server is started, or connected to, and asked what the tool takes. Without `#TOOL` it has the same name there.
    """
    target, sign, own = place.rpartition("#")
    target, own = (target.strip(), own.strip()) if sign else (place.strip(), name)
    server = _servers.get(target)
    if server is None:
        server = _servers[target] = _Server(target)
    found = server.tools()
    if own not in found:
        raise UsageError(f"`--tool`: the server `{shorten(target)}` has no tool `{own}`", f"it has {', '.join(found)}")
    listed = found[own]
    from qpdsl.session.functions import arguments_schema

    try:
        schema = arguments_schema(listed.input_schema)
    except TypeError as error:
        raise UsageError(f"`--tool`: the arguments of `{own}` cannot be written as a record: {error}") from error
    said = " ".join((listed.description or "").split())
    source = json.dumps([target, own, schema], sort_keys=True)
    returns, called = _returns(listed.output_schema), server.caller(own)
    care = care or _care(listed.annotations)
    return CallableTool(name, called, "one", "tool", returns, schema=schema, description=said, care=care, source=source)


def _care(annotations: Any) -> Care:
    """What a server says that a tool does: one that changes something is never called twice."""
    hints = (getattr(annotations, "read_only_hint", None), getattr(annotations, "destructive_hint", None))
    return "effects" if hints[0] is False or (hints[1] is True and not hints[0]) else "usual"


def _returns(schema: Mapping[str, Any] | None) -> str:
    """The column type of what a tool gives: a value that stands as `result`, or else text or a record."""
    if schema is None:
        return "text"
    fields = schema.get("properties", {})
    return _PLAIN.get(fields["result"].get("type"), "unknown") if [*fields] == ["result"] else "unknown"


class _Server:
    """One server: its thread, its connection while it stands, and the calls of its tools."""

    def __init__(self, target: str) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise UsageError("`--tool` with `mcp:` needs the package `mcp`", installing("mcp")) from None
        self._target = target
        self._lock = threading.Lock()
        self._portal = _portal(target)
        self._open: tuple[Any, AbstractContextManager[Any]] | None = None
        atexit.register(self._close)

    def tools(self) -> dict[str, Any]:
        """The tools of the server, by name. Raises UsageError."""
        try:
            client = self._client()
            task = self._portal.start_task_soon(client.list_tools)
            return {tool.name: tool for tool in task.result(_OPENING).tools}
        except (Exception, Lost) as error:
            self._leave()
            why = f"the server `{shorten(self._target)}` does not answer: {_reason(error)}"
            raise UsageError(f"`--tool`: {why}", "is it running, and is that its whole address?") from error

    def caller(self, tool: str) -> Callable[..., Any]:
        """What calls a tool, in any event loop. Raises ToolFailed."""

        async def call(**arguments: Any) -> Any:
            try:
                client = await asyncio.to_thread(self._client)
                task = self._portal.start_task_soon(client.call_tool, tool, arguments)
            except Exception as error:
                self._leave()
                raise ToolFailed(f"its server cannot be reached: {_reason(error)}") from error
            answer = asyncio.wrap_future(task)
            try:
                # One that its thread's own group has cancelled wakes nobody up.
                while not task.done():
                    await asyncio.wait({answer}, timeout=_WATCH)
                result = await answer
            except asyncio.CancelledError:
                if task.done() and not _asked_to_stop():
                    self._leave()
                    raise ToolFailed("the connection to its server broke") from None
                task.cancel()
                raise
            except (Exception, Lost) as error:
                self._leave()
                raise ToolFailed(_reason(error)) from error
            return _value(result)

        return call

    def _client(self) -> Any:
        """The client of the connection, which is made where there is none."""
        from mcp import Client, StdioServerParameters, stdio_client

        with self._lock:
            if self._open is not None:
                return self._open[0]
            way: Any = self._target
            if self._target.startswith(_STDIO):
                command, *arguments = shlex.split(self._target.removeprefix(_STDIO))
                with open(os.devnull, "w") as nowhere:
                    errlog = os.fdopen(os.dup(nowhere.fileno()), "w")
                way = stdio_client(StdioServerParameters(command=command, args=arguments), errlog=errlog)
            manager = self._portal.wrap_async_context_manager(Client(way, read_timeout_seconds=None))
            self._open = manager.__enter__(), manager
            return self._open[0]

    def _leave(self) -> None:
        """Gives up a connection that broke."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            threading.Thread(target=_left, args=(opened[1],), daemon=True).start()

    def _close(self) -> None:
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            leaving = threading.Thread(target=_left, args=(opened[1],), daemon=True)
            leaving.start()
            leaving.join(_CLOSING)


def _portal(name: str) -> Any:
    """A way into an event loop of its own, in a daemon thread."""
    import anyio
    from anyio.from_thread import BlockingPortal

    made: Future[Any] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            made.set_result(portal)
            await portal.sleep_until_stopped()

    threading.Thread(target=lambda: anyio.run(serve), name=f"qpdsl mcp {shorten(name, 24)}", daemon=True).start()
    return made.result()


def _left(manager: AbstractContextManager[Any]) -> None:
    with contextlib.suppress(BaseException):
        manager.__exit__(None, None, None)


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _value(result: Any) -> Any:
    """What a result says, as a value: what is structured, else its text. Raises ToolFailed."""
    parts = (block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
    said = "\n".join(parts)
    if result.is_error:
        raise ToolFailed(said or "it failed, and does not say why")
    structured = result.structured_content
    if structured is None:
        return said
    return structured["result"] if isinstance(structured, dict) and [*structured] == ["result"] else structured


def _reason(error: BaseException) -> str:
    """The first fault of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return named(error)
