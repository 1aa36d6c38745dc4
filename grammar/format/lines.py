"""Lines under construction: pieces set on them, broken within brackets where a line is full or a comment ends it."""

from __future__ import annotations

from qpdsl.grammar.format.pieces import BracketGroup, Piece, PieceNode, first, has_comments, last
from qpdsl.grammar.format.spacing import flat, flat_group, is_call, needs_space
from qpdsl.grammar.literals.strings import reindented
from qpdsl.grammar.printable import cells

# In columns: the width of a line, the indent of a block, and that of a line that goes on with the one above it.
WIDTH = 100
STEP = 2
CONTINUED = 4


def fits(text: str, column: int) -> bool:
    """Whether the text ends within the width, begun at a column; the inner lines of a long string are as they are."""
    line, *more = text.split("\n")
    return column + cells(line) <= WIDTH and (not more or cells(more[-1]) <= WIDTH)


class LineWriter:
    """Finished lines, and the one being written."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.current = ""

    @property
    def column(self) -> int:
        """Where the line being written ends."""
        return cells(self.current.rpartition("\n")[2])

    def text(self) -> str:
        self.end()
        return "".join(f"{line}\n" for line in self.done)

    def put(self, text: str) -> None:
        self.current += text

    def begin(self, indent: int) -> None:
        self.end()
        self.current = " " * indent

    def line(self, indent: int, text: str) -> None:
        """A text on a line of its own."""
        self.begin(indent)
        self.put(text)
        self.end()

    def end(self) -> None:
        """Ends the line, if anything is on it."""
        if self.current.strip():
            self.done.append(self.current.rstrip())
        self.current = ""

    def blank(self) -> None:
        """A blank line, unless one is there or nothing is above it."""
        self.end()
        if self.done and self.done[-1]:
            self.done.append("")

    def comment(self, text: str | None) -> None:
        """A comment behind what stands on the line, which it ends."""
        if text:
            self.put(f"  {text}")
            self.end()

    def above(self, piece: Piece, indent: int, *, blanks: bool = False, opens: bool = False) -> None:
        """The comments above a piece, and with `blanks` the blank lines; `opens`: it is the first after a bracket."""
        for index, comment in enumerate(piece.above):
            if blanks and comment.blank and (index or not opens):
                self.blank()
            self.line(indent, comment.text)
        if blanks and piece.blank and (piece.above or not opens):
            self.blank()

    def nodes(
        self,
        nodes: list[PieceNode],
        indent: int,
        *,
        head: bool = False,
        naming: bool = False,
        within: bool = False,
        room: int = 0,
    ) -> None:
        """Sets nodes from here on, with `room` left behind them; `within` says that they stand in brackets."""
        breaks = self._breaks(nodes, room) if within else set()
        for index, node in enumerate(nodes):
            piece, gap = first(node), needs_space(nodes, index, head=head, naming=naming)
            if index and piece.above:
                self.end()
                self.above(piece, indent + CONTINUED)
            if index in breaks:
                self.begin(indent)
            elif not self.current.strip():
                self.begin(indent + CONTINUED if index else indent)
            elif gap:
                self.put(" ")
            if isinstance(node, Piece):
                self.put(reindented(node.text, indent + STEP))
            else:
                self._group(nodes, index, indent, head=head, room=room)
            if index + 1 < len(nodes):
                self.comment(last(node).after)

    def _group(self, nodes: list[PieceNode], index: int, indent: int, *, head: bool, room: int) -> None:
        group = nodes[index]
        assert isinstance(group, BracketGroup)
        # Those behind the program's name.
        parameters = head and first(nodes[0]).text == "program" and index == 2
        text = flat_group(group, spaced=parameters)
        behind = _reach(nodes[index + 1 :], room)
        if not has_comments([group]) and fits(text + " " * behind, self.column):
            self.put(text)
        else:
            # The values of a list are parted as arguments are; the type of a list, and a place in one, have one entry.
            is_list = group.opener.text == "["
            call = len(group.entries) > 1 if is_list else is_call(nodes, index, head=head)
            self._broken(group, indent, call=call, naming=parameters)

    def _broken(self, group: BracketGroup, indent: int, *, call: bool, naming: bool = False) -> None:
        """A group with each entry on a line of its own, and a comma behind each argument of a call."""
        self.put(group.opener.text)
        inner = _only_group(group)
        if inner:
            self._broken(inner, indent, call=False)
            self.put(group.closer.text)
            return
        self.comment(group.opener.after)
        record = group.opener.text == "{"
        for index, entry in enumerate(group.entries):
            self.end()
            self.above(first(entry.nodes[0]), indent + STEP, blanks=record, opens=index == 0)
            self.nodes(entry.nodes, indent + STEP, naming=naming, within=not record, room=int(call))
            self.put("," if call else "")
            self.comment(last(entry.nodes[-1]).after)
        self.end()
        self.above(group.closer, indent + STEP)
        self.begin(indent)
        self.put(group.closer.text)

    def _breaks(self, nodes: list[PieceNode], room: int) -> set[int]:
        """Where an expression in brackets is broken that does not fit on the line: before `or`, else before `and`."""
        if fits(flat(nodes) + " " * room, self.column):
            return set()
        places = {
            word: {index for index, node in enumerate(nodes) if isinstance(node, Piece) and node.text == word and index}
            for word in ("or", "and")
        }
        return places["or"] or places["and"]


def _only_group(group: BracketGroup) -> BracketGroup | None:
    """The group that is all there is in another, as in `[{ … }]`."""
    if len(group.entries) != 1 or len(group.entries[0].nodes) != 1:
        return None
    inner = group.entries[0].nodes[0]
    if not isinstance(inner, BracketGroup) or inner.opener.text != "{":
        return None
    commented = group.opener.after or inner.opener.above or inner.closer.after or group.closer.above
    return None if commented else inner


def _reach(nodes: list[PieceNode], room: int) -> int:
    """How much stands on the line behind a group, up to the next place where the line can be broken."""
    pieces: list[PieceNode] = []
    for node in nodes:
        if isinstance(node, BracketGroup):
            return cells(flat(pieces)) + 2
        pieces.append(node)
    return cells(flat(pieces).split("\n")[0]) + room
