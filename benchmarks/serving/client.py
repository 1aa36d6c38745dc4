"""A client that asks a server over and over: so many requests side by side, each answer streamed.

    python -m benchmarks.serving.client < SPEC

SPEC is JSON: `url`, `path`, `bodies` (one a request, in order), `clients`, and maybe `core`, where the process is to
stay. A body may have the field `leave_after`, which is not sent: after so many pieces the client goes away. Prints
JSON: the seconds of the whole, and for each request its seconds to the first token and to the end, the tokens that the
server counted, and the text. It speaks HTTP/1.1 itself, over one connection a client: what a client costs is taken from
the server, where cores are few.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass
class Asked:
    """One request: seconds to its first token and to its end, tokens as the server counted them, text, or an error."""

    first: float = 0.0
    whole: float = 0.0
    tokens: int = 0
    text: str = ""
    error: str = ""


class HTTPError(Exception):
    """An answer that is none of 200."""


class Connection:
    """A connection to a server, opened anew where that has closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask(self, path: str, body: dict[str, Any]) -> Asked:
        """Asks, and reads the answer as it is streamed."""
        asked = Asked()
        start = time.perf_counter()
        leaves = body.get("leave_after", 0)
        payload = json.dumps({name: value for name, value in body.items() if name != "leave_after"}).encode()
        try:
            reader, (status, headers) = await self._send(path, payload)
            if status != 200:
                raise HTTPError(f"{status}: {(await _rest(reader, headers))[:300]!r}")
            if headers.get("content-type", "").startswith("application/json"):
                answer = json.loads(await _rest(reader, headers))
                asked.tokens = answer["usage"]["completion_tokens"]
            else:
                await self._events(reader, headers, asked, start, leaves)
        except (OSError, asyncio.IncompleteReadError, HTTPError, ValueError) as error:
            asked.error = f"{type(error).__name__}: {error}"
            await self.close()
        asked.whole = time.perf_counter() - start
        return asked

    async def _send(self, path: str, payload: bytes) -> tuple[asyncio.StreamReader, tuple[int, dict[str, str]]]:
        """Sends a request and reads the head of its answer; again where the server had closed the old connection."""
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-type: application/json\r\n"
        request = f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload
        if self._streams is not None:
            reader, writer = self._streams
            try:
                writer.write(request)
                return reader, await _head(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                await self.close()
        self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(request)
        return reader, await _head(reader)

    async def _events(
        self, reader: asyncio.StreamReader, headers: dict[str, str], asked: Asked, start: float, leaves: int
    ) -> None:
        pending = b""
        texts: list[str] = []
        async for part in _parts(reader, headers):
            pending += part
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if not line.startswith(_DATA) or line.startswith(_DONE):
                    continue
                event = json.loads(line[len(_DATA) :])
                if "error" in event:
                    raise HTTPError(str(event["error"]))
                if event.get("usage"):
                    asked.tokens = event["usage"]["completion_tokens"]
                for choice in event.get("choices", ()):
                    text = choice.get("text") or choice.get("delta", {}).get("content")
                    if text:
                        if not texts:
                            asked.first = time.perf_counter() - start
                        texts.append(text)
            if leaves and len(texts) >= leaves:
                await self.close()
                return
        asked.text = "".join(texts)
        if headers.get("connection") == "close" or "transfer-encoding" not in headers:
            await self.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> Any:
    """The body as it comes."""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        while part := await reader.read(65536):
            yield part


async def _rest(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return b"".join([part async for part in _parts(reader, headers)])


async def ask_all(url: str, path: str, bodies: list[dict[str, Any]], clients: int) -> tuple[float, list[Asked]]:
    """Asks everything, `clients` at a time; returns the seconds of the whole and each answer, in order."""
    answers: list[Asked] = [Asked() for _ in bodies]
    waiting = iter(enumerate(bodies))

    async def one() -> None:
        connection = Connection(url)
        for number, body in waiting:
            answers[number] = await connection.ask(path, body)
        await connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return time.perf_counter() - start, answers


def main() -> None:
    spec = json.load(sys.stdin)
    if spec.get("core") is not None:
        os.sched_setaffinity(0, {spec["core"]})
    seconds, answers = asyncio.run(ask_all(spec["url"], spec["path"], spec["bodies"], spec["clients"]))
    json.dump({"seconds": seconds, "answers": [asdict(answer) for answer in answers]}, sys.stdout)


if __name__ == "__main__":
    main()
