"""Server-sent events out of a stream of bytes, however it is cut (WHATWG HTML, section 9.2)."""

from __future__ import annotations


class ServerSentEvents:
    """Takes bytes as they come and gives the data of the events that they complete.

    Lines end with CR, LF or both; they are decoded as a whole, so a character may be cut between two pieces. Comments
    and fields other than `data` are skipped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._after_cr = False

    def push(self, piece: bytes) -> list[str]:
        """The data of the events that end in this piece."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        if b"\n" not in piece and b"\r" not in piece:
            self._line += piece
            return []
        lines = (bytes(self._line) + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line = bytearray(lines.pop())
        events = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
