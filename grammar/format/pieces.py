"""A source text as nested pieces, with every comment and blank line where it belongs: what the formatter lays out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qpdsl.grammar.parse.layout import lay_out
from qpdsl.grammar.parse.tokens import Kind, Token
from qpdsl.grammar.source import Source

_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True)
class Comment:
    """A comment on a line of its own; `blank` says that a blank line stands above it."""

    text: str
    blank: bool


@dataclass(slots=True)
class Piece:
    """A token, the comments above it, and the one behind it on its line; `blank`: a blank line right above it."""

    kind: Kind
    text: str
    start: int
    end: int
    above: list[Comment] = field(default_factory=list)
    blank: bool = False
    after: str | None = None


@dataclass(slots=True)
class Entry:
    """What stands between two separators: a declaration, stage, field or argument.

    A comment behind the separator is a comment behind the last piece before it.
    """

    nodes: list[PieceNode] = field(default_factory=list)

    @property
    def above(self) -> list[Comment]:
        return first(self.nodes[0]).above

    @property
    def after(self) -> str | None:
        return last(self.nodes[-1]).after


@dataclass(slots=True)
class BracketGroup:
    """What stands between two brackets. The whole text is one with empty brackets."""

    opener: Piece
    entries: list[Entry]
    closer: Piece


PieceNode = Piece | BracketGroup


def pieces(source: Source) -> BracketGroup:
    """The pieces of a text that parses."""
    return _PieceBuilder(source).run()


def first(node: PieceNode) -> Piece:
    return node.opener if isinstance(node, BracketGroup) else node


def last(node: PieceNode) -> Piece:
    return node.closer if isinstance(node, BracketGroup) else node


def leaves(nodes: list[PieceNode]) -> Iterator[Piece]:
    """All pieces below some nodes, in order."""
    for node in nodes:
        if isinstance(node, Piece):
            yield node
        else:
            yield node.opener
            for entry in node.entries:
                yield from leaves(entry.nodes)
            yield node.closer


def has_comments(nodes: list[PieceNode]) -> bool:
    """Whether a comment stands anywhere in the nodes, but for above the first piece and behind the last."""
    inner = list(leaves(nodes))
    return any(piece.above for piece in inner[1:]) or any(piece.after for piece in inner[:-1])


class _PieceBuilder:
    def __init__(self, source: Source) -> None:
        self.text = source.text
        layout = lay_out(source, source.text, pipeline=False)
        self.tokens, self.separates = layout.scanned, layout.text
        self.unions = {*layout.unions}
        self.stack = [BracketGroup(_empty(0), [Entry()], _empty(len(source.text)))]
        self.above: list[Comment] = []
        self.blank = False
        self.before: Piece | None = None
        self.same_line = False

    def run(self) -> BracketGroup:
        for token in self.tokens:
            if token.kind == "newline":
                self._newline(token)
            elif token.kind == "comment":
                self._comment(token)
            elif token.kind == "sign" and self._is_separator(token):
                self._separate()
            else:
                self._piece(token)
        whole = self.stack[0]
        self._separate()
        whole.entries = [entry for entry in whole.entries if entry.nodes]
        whole.closer.above = self.above
        return whole

    def _is_separator(self, token: Token) -> bool:
        ends = token.text == "|" and token.start not in self.unions
        return token.text == "," or (ends and self.stack[-1].opener.text not in ("(", "["))

    def _newline(self, token: Token) -> None:
        self.same_line = False
        self.blank = self.blank or token.text.count("\n") > 1
        if self.separates[token.start] == "\n" and self.stack[-1].opener.text in ("", "{"):
            self._separate()

    def _comment(self, token: Token) -> None:
        text = token.text.rstrip()
        if self.same_line and self.before and self.before.after is None:
            self.before.after = text
        else:
            self.above.append(Comment(text, self.blank))
            self.blank = False

    def _separate(self) -> None:
        entries = self.stack[-1].entries
        if entries[-1].nodes:
            self._join_path(entries[-1].nodes)
            entries.append(Entry())

    def _join_path(self, nodes: list[PieceNode]) -> None:
        """Makes one piece of the `.json.path` at the end of an `extract`, or before the block of an `each`."""
        word, behind = first(nodes[0]).text, len(nodes)
        if word == "each" and isinstance(nodes[-1], BracketGroup) and nodes[-1].opener.text == "{":
            behind -= 1
        elif word != "extract":
            return
        for index, node in enumerate(nodes[:behind]):
            begins = word == "extract" or first(nodes[index - 1]).text == "in"
            if isinstance(node, Piece) and node.text == "." and node.kind == "sign" and begins:
                end = last(nodes[behind - 1])
                node.text, node.end, node.after = self.text[node.start : end.end], end.end, end.after
                del nodes[index + 1 : behind]
                self.before = node if nodes[-1] is node else self.before
                return

    def _piece(self, token: Token) -> None:
        closes = token.kind == "sign" and token.text in _PAIRS.values()
        if closes:
            self._separate()
        piece = Piece(token.kind, token.text, token.start, token.end, self.above, self.blank)
        self.above, self.blank, self.before, self.same_line = [], False, piece, True
        group = self.stack[-1]
        if token.kind == "sign" and token.text in _PAIRS:
            opened = BracketGroup(piece, [Entry()], piece)
            group.entries[-1].nodes.append(opened)
            self.stack.append(opened)
        elif closes:
            group.entries = [entry for entry in group.entries if entry.nodes]
            group.closer = piece
            self.stack.pop()
        else:
            group.entries[-1].nodes.append(piece)


def _empty(offset: int) -> Piece:
    return Piece("sign", "", offset, offset)
