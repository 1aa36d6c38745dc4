"""Connections of a server: so many at once, with a time for the head of a request, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import termios
from array import array
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from qpdsl.serve.completion_request import Refusal


class ClientConnection(H11Protocol):
    """A connection of uvicorn's. Beyond `most` at once the next is refused; a head comes within `seconds`.

    One whose client takes nothing of what is sent for `unread` seconds is cut off.
    """

    most = 1024
    seconds = 30.0
    unread = 60.0
    _head: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    @classmethod
    def bounded(cls, most: int, seconds: float, unread: float = unread) -> type[ClientConnection]:
        """Connections with these bounds."""
        return type("BoundedConnection", (cls,), {"most": most, "seconds": seconds, "unread": unread})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            message = f"the server has {self.most:,} connections, and takes no more now"
            self._refuse(Refusal(message, status=503, code="too_many_connections"))
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_idle = self.timeout_keep_alive_task is not None
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()
        elif was_idle:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Of what is not HTTP."""
        self._refuse(Refusal(msg, code="invalid_http"))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._stop_waiting()
        self._head = self.loop.call_later(self.seconds, self._late)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _watch(self) -> None:
        """Sees to it that the client takes what there is for it; a transport that closes waits for that too."""
        if self._sending is None and self.transport.get_write_buffer_size():
            self._sending = self.loop.call_later(self.unread, self._unread, self._left())

    def _unread(self, before: int) -> None:
        self._sending = None
        if self._left() < before:
            self._watch()
        else:
            self.transport.abort()

    def _left(self) -> int:
        """Bytes that the client has not taken: here, and in the kernel, which asks for more only now and then."""
        kernel = array("i", [0])
        with contextlib.suppress(OSError, ValueError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kernel)
        return self.transport.get_write_buffer_size() + kernel[0]

    def _stop_watching(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _late(self) -> None:
        if self.transport.is_closing() or self._is_answering:
            return
        if self.conn.trailing_data[0]:
            message = f"the head of the request took more than {self.seconds:g} s to arrive"
            self._refuse(Refusal(message, status=408, code="head_too_slow"))
        else:
            self.transport.close()
            self._watch()

    def _refuse(self, refusal: Refusal) -> None:
        """Answers, where nothing else has been, and closes."""
        begun = self.cycle is not None and self._is_answering and self.cycle.response_started
        if self._is_answering:
            # Its application is told that the client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not begun:
            body = json.dumps(refusal.body()).encode()
            lines = [
                f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
            ]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
        self._watch()
