"""Pieces on one line: where a space stands between two of them."""

from __future__ import annotations

from qpdsl.grammar.format.pieces import BracketGroup, Piece, PieceNode, first, last
from qpdsl.grammar.words import RESERVED

_VALUES = frozenset({"true", "false", "none"})
# Entries in which `=` gives a name to a thing, with spaces around it; elsewhere it sets an option.
_NAMING = frozenset({"model", "extract", "let", "join"})


def flat(nodes: list[PieceNode], *, head: bool = False, spaced: bool = False, places: bool = False) -> str:
    """The nodes on one line. `head`: the first one is the word of a stage or declaration; `spaced`: so is each `=`.

    `places`: a `:` parts places in a list.
    """
    naming = spaced or (head and is_naming(nodes))
    parameters = head and first(nodes[0]).text == "program"
    parts = []
    for index, node in enumerate(nodes):
        gap = needs_space(nodes, index, head=head, naming=naming)
        gap = gap and not (places and index and last(nodes[index - 1]).text == ":")
        # The brackets behind a program's name hold its parameters, later ones options of a clause.
        text = node.text if isinstance(node, Piece) else flat_group(node, spaced=parameters and index == 2)
        parts.append(f" {text}" if gap else text)
    return "".join(parts)


def flat_group(group: BracketGroup, *, spaced: bool = False) -> str:
    inner = ", ".join(flat(entry.nodes, spaced=spaced, places=group.opener.text == "[") for entry in group.entries)
    if group.opener.text == "{":
        return f"{{ {inner} }}" if inner else "{}"
    return f"{group.opener.text}{inner}{group.closer.text}"


def is_naming(nodes: list[PieceNode]) -> bool:
    """Whether a declaration or stage gives a name to a thing with `=`."""
    return first(nodes[0]).text in _NAMING


def needs_space(nodes: list[PieceNode], index: int, *, head: bool, naming: bool) -> bool:
    """Whether a space stands before the node at `index`."""
    if index == 0:
        return False
    before, here = last(nodes[index - 1]), first(nodes[index])
    if here.kind == "sign" and here.text in ("?", ":", ".."):
        return False
    if before.kind == "sign" and before.text in ("..", "."):
        return False
    if (
        here.kind == "sign"
        and here.text == "."
        and (before.text == "]" or (before.kind == "word" and not _is_reserved(nodes, index - 1)))
    ):
        return False
    if any(piece.text == "=" and piece.kind == "sign" for piece in (here, before)):
        # Behind what is named, `=` sets options.
        return naming and (not head or index <= _first_sign(nodes) + 1)
    if here.text == "(" and here.kind == "sign":
        return not is_call(nodes, index, head=head) and not _is_type_list(nodes[index - 1])
    if here.text == "[" and here.kind == "sign" and (is_call(nodes, index, head=head) or before.text in ("]", ")")):
        return before.text == "in"
    return not (before.text == "-" and before.kind == "sign" and _is_prefix(nodes, index - 1, head=head))


def _first_sign(nodes: list[PieceNode]) -> int:
    """The place of the first `=`."""
    return next(index for index, node in enumerate(nodes) if isinstance(node, Piece) and node.text == "=")


def _is_reserved(nodes: list[PieceNode], index: int) -> bool:
    """Whether a reserved word stands there, and no field's name, which follows a dot."""
    node, before = nodes[index], nodes[index - 1] if index else None
    is_field = isinstance(before, Piece) and before.text == "."
    return isinstance(node, Piece) and node.text in RESERVED and not is_field


def _is_type_list(node: PieceNode) -> bool:
    """Whether brackets behind the node hold the bounds of a list's length: `[text](1..3)`."""
    return isinstance(node, BracketGroup) and node.opener.text == "["


def is_call(nodes: list[PieceNode], index: int, *, head: bool) -> bool:
    """Whether the brackets at `index` hold the arguments of the name before them."""
    node = nodes[index - 1] if index else None
    keyword = index and (_is_reserved(nodes, index - 1) or (head and index == 1))
    return isinstance(node, Piece) and node.kind in ("word", "string") and not keyword


def _is_prefix(nodes: list[PieceNode], index: int, *, head: bool) -> bool:
    """Whether the `-` at `index` stands before its only operand."""
    if index == 0:
        return True
    before = nodes[index - 1]
    if isinstance(before, BracketGroup):
        return False
    if before.kind == "word":
        return (head and index == 1) or (_is_reserved(nodes, index - 1) and before.text not in _VALUES)
    return before.kind == "sign"
