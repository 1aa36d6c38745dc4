"""The one layout of a program: its text laid out anew, with every comment at its place, or written from its tree.

Two spaces of indent, a stage a line, lines of at most 100 columns where they can be broken, at most one blank line in a
row. Options stay in the order, and numbers, strings and brackets in the form, in which they were written.
"""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.format.lines import CONTINUED, STEP, LineWriter, fits
from qpdsl.grammar.format.pieces import BracketGroup, Entry, Piece, PieceNode, first, has_comments, last, leaves, pieces
from qpdsl.grammar.format.spacing import flat, is_naming
from qpdsl.grammar.format.unparse import unparse
from qpdsl.grammar.literals.strings import reindented
from qpdsl.grammar.parse.layout import BEFORE_RECORD
from qpdsl.grammar.parse.parser import gc_disabled, parse_file
from qpdsl.grammar.source import Source
from qpdsl.grammar.words import CLAUSES


def format_source(source: Source) -> str:
    """The text in the one layout. Raises `QpError` for a text that does not parse."""
    errors = [error for error in parse_file(source).errors if error.code != "QP120"]
    if errors:
        raise QpError(errors, source)
    return _format(source)


def print_file(file: ast.File) -> str:
    """A tree as text, in the one layout: for programs that were built and not written."""
    return _format(Source(file.source.name, unparse(file)))


@gc_disabled()
def _format(source: Source) -> str:
    lines = LineWriter()
    whole = pieces(source)
    had_block = False
    for entry in whole.entries:
        has_block = isinstance(entry.nodes[-1], BracketGroup)
        if had_block or has_block:
            lines.blank()
        _entry(lines, entry, 0, opens=False)
        had_block = has_block
    whole.closer.blank = False
    lines.above(whole.closer, 0, blanks=True)
    return lines.text()


def _entry(lines: LineWriter, entry: Entry, indent: int, *, opens: bool) -> None:
    """A declaration, stage, field of a schema, or arm, with its comments; `opens` says that it is its block's first."""
    nodes, block = entry.nodes, entry.nodes[-1]
    lines.above(first(nodes[0]), indent, blanks=True, opens=opens)
    if not isinstance(block, BracketGroup) or block.opener.text != "{" or _is_short_record(nodes, indent):
        _reindent(nodes, indent)
        _head(lines, nodes, indent, "")
        lines.comment(last(nodes[-1]).after)
    elif isinstance(nodes[0], BracketGroup) or first(nodes[0]).text == "or":
        _comments_between(lines, nodes, indent)
        _arm(lines, block, indent, "or " if len(nodes) == 2 else "")
        lines.comment(last(block).after)
    else:
        for part in _parts(nodes):
            _part(lines, part, indent)
            lines.comment(last(part[-1]).after)
    lines.end()


def _parts(nodes: list[PieceNode]) -> list[list[PieceNode]]:
    """Each block of a stage with what stands before it: an `if` may have several."""
    parts: list[list[PieceNode]] = [[]]
    for node in nodes:
        if isinstance(node, Piece) and node.text == "else" and parts[-1] and isinstance(parts[-1][-1], BracketGroup):
            parts.append([])
        parts[-1].append(node)
    return parts


def _part(lines: LineWriter, nodes: list[PieceNode], indent: int) -> None:
    """A block with its head; an `else` stands behind the brace before it, but for a comment between them."""
    block, word = nodes[-1], first(nodes[0]).text
    assert isinstance(block, BracketGroup)
    behind = last(nodes[-2]).after
    _reindent(nodes[:-1], indent)
    lines.above(block.opener, indent)
    if word == "else":
        lines.above(first(nodes[0]), indent)
        lines.put(" " if lines.current else " " * indent)
        lines.put("else" if len(nodes) == 2 else "else ")
        nodes = nodes[1:]
    if len(nodes) == 1:
        lines.put(" {")
    elif _head(lines, nodes[:-1], indent, " {"):
        lines.comment(behind)
        lines.begin(indent)
        lines.put("{")
        behind = None
    _opening_comments(lines, [behind, block.opener.after], indent + STEP)
    _block(lines, block, indent, word="let" if _ends_in_record(nodes) else word)


def _ends_in_record(nodes: list[PieceNode]) -> bool:
    """Whether the braces at the end of a stage hold a record and no block."""
    before = nodes[-2] if len(nodes) > 1 else None
    return isinstance(before, Piece) and (before.text in BEFORE_RECORD or before.text == "return")


def _is_short_record(nodes: list[PieceNode], indent: int) -> bool:
    """Whether a stage ends in a record and not in a block, and the record fits on its line."""
    if not _ends_in_record(nodes) or has_comments(nodes):
        return False
    text = flat(nodes, head=True)
    return "\n" not in text and fits(text, indent)


def _reindent(nodes: list[PieceNode], indent: int) -> None:
    """Indents long strings anew."""
    for piece in leaves(nodes):
        piece.text = reindented(piece.text, indent + STEP)


def _opening_comments(lines: LineWriter, comments: list[str | None], indent: int) -> None:
    """The comments behind the brace that opens a block; of two the second gets a line in the block."""
    texts = [comment for comment in comments if comment]
    lines.comment(texts[0] if texts else None)
    lines.end()
    for comment in texts[1:]:
        lines.line(indent, comment)


def _block(lines: LineWriter, block: BracketGroup, indent: int, *, word: str) -> None:
    """The entries of a block and its closing brace; the brace that opens it is written already."""
    for index, entry in enumerate(_arms(block) if word in ("branch", "strategy") else block.entries):
        if word in ("schema", "let", "return"):
            _field(lines, entry, indent + STEP, opens=index == 0)
        else:
            _entry(lines, entry, indent + STEP, opens=index == 0)
    block.closer.blank = False
    lines.above(block.closer, indent + STEP, blanks=True, opens=not block.entries)
    lines.begin(indent)
    lines.put("}")


def _field(lines: LineWriter, entry: Entry, indent: int, *, opens: bool) -> None:
    """A field of a schema or a record, with its comments; `opens` as for an entry."""
    lines.above(first(entry.nodes[0]), indent, blanks=True, opens=opens)
    _reindent(entry.nodes, indent)
    lines.nodes(entry.nodes, indent)
    lines.comment(last(entry.nodes[-1]).after)
    lines.end()


def _arms(block: BracketGroup) -> list[Entry]:
    """The arms of a `branch`, which need nothing between them, or of a `strategy`, each with the `or` before it."""
    nodes = [node for entry in block.entries for node in entry.nodes]
    arms = []
    for word, node in zip([None, *nodes], nodes, strict=False):
        if isinstance(node, BracketGroup):
            arms.append(Entry([word, node] if isinstance(word, Piece) else [node]))
    return arms


def _comments_between(lines: LineWriter, nodes: list[PieceNode], indent: int) -> None:
    """The comments between an `or` and the brace of the arm behind it, above both."""
    if len(nodes) == 2:
        if after := first(nodes[0]).after:
            lines.line(indent, after)
        lines.above(first(nodes[1]), indent)


def _arm(lines: LineWriter, block: BracketGroup, indent: int, lead: str) -> None:
    """An arm behind its `lead`: on one line where it is empty, or one stage that fits and has no block of its own."""
    only = block.entries[0].nodes if len(block.entries) == 1 else []
    simple = only and not any(isinstance(node, BracketGroup) and node.opener.text == "{" for node in only)
    if (simple or not block.entries) and not has_comments([block]):
        text = f"{lead}{{ {flat(only, head=True)} }}" if simple else f"{lead}{{}}"
        if fits(text, indent) and "\n" not in text:
            lines.begin(indent)
            lines.put(text)
            return
    lines.begin(indent)
    lines.put(f"{lead}{{")
    lines.comment(block.opener.after)
    lines.end()
    _block(lines, block, indent, word="")


def _head(lines: LineWriter, nodes: list[PieceNode], indent: int, tail: str) -> bool:
    """A stage or declaration, or what stands before its block with the brace (`tail`) that opens it.

    Returns whether its options stand on lines of their own. The brace then gets one too, and is still to be written.
    """
    parts, text = _segments(nodes), flat(nodes, head=True)
    if not lines.current:
        lines.begin(indent)
    if has_comments(nodes) or not fits(text + tail, lines.column) or ("\n" in text and len(parts) > 2):
        if _broken(lines, parts, indent, len(tail)):
            return True
    else:
        lines.put(text)
    lines.put(tail)
    return False


def _broken(lines: LineWriter, parts: list[list[PieceNode]], indent: int, room: int) -> bool:
    """A head that is too long for one line: with its brackets broken where that is enough, else a line for each part.

    `room` is what stands behind it. Returns whether there is a line for each part.
    """
    if len(parts[0]) == 1 and len(parts) > 1:
        parts = [parts[0] + parts[1], *parts[2:]]
    naming = is_naming(parts[0])
    rest = [node for part in parts[1:] for node in part]
    lines.nodes(parts[0], indent, head=True, naming=naming, room=0 if rest else room)
    if not rest:
        return False
    before = last(parts[0][-1])
    text, closed = flat(rest), lines.current.startswith(f"{' ' * indent})")
    plain = "\n" not in text and not before.after and not has_comments([parts[0][-1], *rest])
    if closed and plain and fits(f" {text}{' ' * room}", lines.column):
        lines.put(f" {text}")
        return False
    for part in parts[1:]:
        lines.comment(before.after)
        lines.end()
        lines.above(first(part[0]), indent + CONTINUED)
        lines.nodes(part, indent + CONTINUED)
        before = last(part[-1])
    return True


def _segments(nodes: list[PieceNode]) -> list[list[PieceNode]]:
    """The parts that a head may be broken into: what it begins with, then each option and clause.

    A line that begins with an option or clause goes on with the stage or declaration above it.
    """
    parts: list[list[PieceNode]] = [[]]
    for index in range(len(nodes)):
        if index and _begins_segment(nodes, index):
            parts.append([])
        parts[-1].append(nodes[index])
    return parts


def _begins_segment(nodes: list[PieceNode], index: int) -> bool:
    """Whether an option or clause begins at `index`."""
    node = nodes[index]
    if not isinstance(node, Piece) or node.kind != "word":
        return False
    following = nodes[index + 1] if index + 1 < len(nodes) else None
    word, before = first(nodes[0]).text, first(nodes[index - 1]).text
    if before == ".":
        # The field of a record may have any name.
        return False
    if isinstance(following, Piece) and following.text == "=":
        return (word != "model" or index > 2) and word != "extract" and (before != "prefer" or index == 1)
    if node.text == "draft":
        # It may also be the name of a model, a column or a parameter.
        is_name = before in CLAUSES or before == "draft"
        return index > 1 and word in ("generate", "program") and following is not None and not is_name
    if node.text == "like":
        return index > 1 and word == "program" and following is not None and before != "draft"
    return node.text in CLAUSES
