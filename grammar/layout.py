"""Which newlines end a stage, how brackets pair, and where each stage begins and ends.

A stage ends at a newline or at `|`. It goes on while `(` or `[` is open, or where the next line starts with `key=`, a
clause word, `->` or `{`. `lay_out` blanks every comment and every newline that ends nothing, so that the grammar can
take each newline that is left for a separator. Offsets stay those of the source.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from qpdsl.grammar.diagnostic import Diagnostic, Label, QpError
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.tokens import MAX_FAULTS, Token, next_significant, scan
from qpdsl.grammar.words import ABSENT, CLAUSES, DECLARATIONS, STAGES

MAX_NESTING = 64
_VISIBLE = re.compile(r"[^\n]")
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(slots=True)
class Statement:
    """A run of tokens without a separator or brace: a stage, a declaration, or the head of a block."""

    tokens: list[Token]
    depth: int

    @property
    def span(self) -> Span:
        return Span(self.tokens[0].start, self.tokens[-1].end)


@dataclass(slots=True)
class Layout:
    """`broken` says that braces do not pair, so that nothing about the structure can be trusted."""

    text: str
    tokens: list[Token]
    statements: list[Statement] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)
    broken: bool = False

    def statement_at(self, offset: int) -> Statement | None:
        """The statement that holds the offset, else the last one before it."""
        starts = [statement.tokens[0].start for statement in self.statements]
        index = bisect_right(starts, offset) - 1
        return self.statements[index] if index >= 0 else None

    def token_at(self, offset: int) -> Token | None:
        starts = [token.start for token in self.tokens]
        index = bisect_right(starts, offset) - 1
        found = self.tokens[index] if index >= 0 else None
        return found if found and found.end > offset else None

    def block_after(self, statement: Statement) -> Span | None:
        """The block that the statement is the head of, if it is one."""
        index = self.tokens.index(statement.tokens[-1]) + 1
        if statement.tokens[0].text == "repeat":  # a slip: `repeat 3 | { … }`
            while index < len(self.tokens) and self.tokens[index].text.strip() in ("", "|"):
                index += 1
        if index == len(self.tokens) or self.tokens[index].text != "{":
            return None
        depth = 0
        for token in self.tokens[index:]:
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return Span(self.tokens[index].start, token.end)
        return None

    def without(self, statement: Statement) -> str:
        """The text with a statement blanked, and one `|` beside it, so that no empty stage is left.

        The block behind a faulty head stays, to find the errors in it, but for one that holds no stages.
        """
        spans = [statement.span]
        block, word = self.block_after(statement), statement.tokens[0].text
        if block and (word in ABSENT or (statement.depth == 0 and word not in DECLARATIONS)):
            spans.append(block)
        index = self.tokens.index(statement.tokens[0])
        after = self.tokens.index(statement.tokens[-1], index) + 1
        beside = [next((t for t in self.tokens[after:] if t.kind != "newline"), None)]
        beside.append(next((t for t in reversed(self.tokens[:index]) if t.kind != "newline"), None))
        spans += [token.span for token in beside if token and token.text == "|"][:1]
        return blank(self.text, spans)


def blank(text: str, spans: Iterable[Span], *, newlines: bool = True) -> str:
    """The text with spaces in place of the spans, as long as before; `newlines` says that newlines in them stay."""
    pieces, done = [], 0
    for span in sorted(spans, key=lambda span: span.start):
        pieces += [text[done : span.start], _VISIBLE.sub(" ", text[span.start : span.end])]
        if not newlines:
            pieces[-1] = pieces[-1].replace("\n", " ")
        done = span.end
    return "".join([*pieces, text[done:]])


def lay_out(source: Source, text: str, *, pipeline: bool, headless: AbstractSet[int] = frozenset()) -> Layout:
    """Lays out `text`, the source with perhaps some parts blanked. Raises `QpError` where it nests too deep.

    `headless` holds the offsets of braces whose heads are among the blanked parts.
    """
    everything, faults = scan(source, text)
    spaces = [token.span for token in everything if token.kind == "comment"]
    tokens = [token for token in everything if token.kind != "comment"]
    layout = Layout(text, tokens, faults=faults)
    layout.broken = any(fault.code == "QP105" and fault.span.end - fault.span.start == 3 for fault in faults)
    builder = _Builder(source, layout, 1 if pipeline else 0, headless)
    joined = builder.run()
    layout.text = blank(text, [*spaces, *joined], newlines=False).replace("\ufeff", " ")
    return layout


class _Builder:
    def __init__(self, source: Source, layout: Layout, floor: int, headless: AbstractSet[int]) -> None:
        self.source = source
        self.layout = layout
        self.tokens = layout.tokens
        self.floor = floor
        self.headless = headless
        self.stack: list[Token] = []
        self.braces = 0
        self.current: list[Token] = []
        self.suspect: Token | None = None
        self.previous: Token | None = None
        self.significant = next_significant(self.tokens)

    def run(self) -> list[Span]:
        """Builds the statements; returns the newlines that end nothing."""
        joined: list[Span] = []
        for index, token in enumerate(self.tokens):
            if token.kind == "newline":
                if self._in_brackets() and self._starts_stage(index + 1):
                    self._unclosed_brackets()
                if self._in_brackets() or self._goes_on(index):
                    joined.append(token.span)
                else:
                    self._end()
            elif token.kind != "sign":
                self.current.append(token)
            elif token.text == "|" and not self._in_brackets():
                self._end()
                self._check_pipe(index)
            elif token.text in "{}":
                self._unclosed_brackets()
                self._end()
                self._open(token) if token.text == "{" else self._close(token)
            else:
                self.current.append(token)
                if token.text in "([":
                    self._open(token)
                elif token.text in ")]":
                    self._close(token)
            if token.kind != "newline":
                self.previous = token
        self._unclosed_brackets()
        self._end()
        if self.stack and not self.layout.broken:
            opener = self.suspect or self.stack[-1]
            self._fault("QP107", "this `{` is never closed", opener, "opened here", fatal=True)
        return joined

    def _in_brackets(self) -> bool:
        return bool(self.stack) and self.stack[-1].text != "{"

    def _end(self) -> None:
        if self.current:
            self.layout.statements.append(Statement(self.current, self.braces + self.floor))
            self.current = []

    def _open(self, token: Token) -> None:
        self.stack.append(token)
        self.braces += token.text == "{"
        if len(self.stack) > MAX_NESTING:
            message = f"brackets nest over {MAX_NESTING} deep here"
            raise QpError([Diagnostic("QP103", message, token.span, "one too many")], self.source)

    def _close(self, token: Token) -> None:
        opener = _PAIRS[token.text]
        if self.stack and self.stack[-1].text == opener:
            start = self.stack.pop()
            if opener == "{":
                self.braces -= 1
                if self._leads_line(token) and self._indent(token) < self._indent(start):
                    self.suspect = self.suspect or start
            return
        message = f"this `{token.text}` closes nothing"
        secondary: tuple[Label, ...] = ()
        if self.stack and self.stack[-1].text != "{":
            inner = self.stack.pop()
            message = f"expected the bracket that closes `{inner.text}`, found `{token.text}`"
            secondary = (Label(inner.span, "opened here"),)
        self._fault("QP107", message, token, secondary=secondary, fatal=opener == "{")

    def _unclosed_brackets(self) -> None:
        while self._in_brackets():
            token = self.stack.pop()
            self._fault("QP107", f"this `{token.text}` is never closed", token, "opened here")

    def _check_pipe(self, index: int) -> None:
        token = self.tokens[index]
        if not self.floor and not self.braces:
            self._fault("QP113", "`|` parts stages, not declarations", token, help="put each on its own line")
            return
        after = self.significant[index + 1]
        if self.previous is None or self.previous.text in ("|", "{"):
            self._fault("QP113", "expected a stage before this `|`", token)
        elif after == len(self.tokens) or self.tokens[after].text == "}":
            self._fault("QP113", "expected a stage after this `|`", token)

    def _goes_on(self, index: int) -> bool:
        if not self.current:
            return False
        index = self.significant[index]
        if index == len(self.tokens):
            return False
        token = self.tokens[index]
        if token.kind == "word":
            following = self.tokens[index + 1].text if index + 1 < len(self.tokens) else ""
            return token.text in CLAUSES or following == "="
        return token.text in ("->", "{") and token.start not in self.headless

    def _starts_stage(self, index: int) -> bool:
        """Whether the line here is surely a stage or declaration, so that an open bracket above it was forgotten."""
        index = self.significant[index]
        if index + 1 >= len(self.tokens):
            return False
        word, after = self.tokens[index], self.tokens[index + 1]
        if word.text not in STAGES and word.text not in DECLARATIONS:
            return False
        return after.kind in ("number", "string") or (
            after.kind == "word" and after.text not in ("and", "or", "matches")
        )

    def _leads_line(self, token: Token) -> bool:
        line, column = self.source.position(token.start)
        return not self.source.line(line)[: column - 1].strip()

    def _indent(self, token: Token) -> int:
        text = self.source.line(self.source.position(token.start)[0])
        return len(text) - len(text.lstrip())

    def _fault(
        self,
        code: str,
        message: str,
        token: Token,
        label: str = "",
        *,
        secondary: tuple[Label, ...] = (),
        help: str | None = None,
        fatal: bool = False,
    ) -> None:
        if len(self.layout.faults) < MAX_FAULTS:
            self.layout.faults.append(Diagnostic(code, message, token.span, label, secondary, help=help))
        self.layout.broken |= fatal
