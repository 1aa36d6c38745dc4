"""The layout of a text: where each stage, field and declaration begins and ends, and how one is blanked.

Which newlines end a stage, how brackets pair, and where each stage begins and ends.

A stage ends at a newline or at `|`. It continues while `(` or `[` is open, where the next line starts with `key=`, a
clause word, `->` or `{`, in the head of a program also `or`, and behind its block where that starts with `else` or
`or`. `lay_out` blanks every comment and every newline that ends nothing, so that the grammar can treat each newline
that is left as a separator. Offsets stay those of the source.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from qpdsl.grammar.ast.stage import STAGES, options, parts
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label, QpError
from qpdsl.grammar.parse.tokens import MAX_FAULTS, Token, next_significant, scan
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import CLAUSES, DECLARATIONS, TYPES

# What stands between two braces: stages, the fields of a schema, or the arms of a `branch`; `file` is outside all.
Inside = Literal["file", "stages", "fields", "arms"]
# What may stand behind a schema of a union, besides the end of a line: an unknown stage has other words there.
_BEHIND_SCHEMA = {"|", "{", "}", "?", "draft", "like", *CLAUSES, *options(STAGES["generate"])} - {"by", "per"}
_NO_SCHEMAS = {*TYPES, "none"}
# What has a block behind it, always.
_BLOCK_HEADS = {"program", "schema", "branch", "strategy"} | {
    word for word, cls in STAGES.items() if any(part.kind == "block" for _, part in parts(cls)) and word != "each"
}
_VISIBLE = re.compile(r"[^\n]")


@dataclass(slots=True)
class Statement:
    """A run of tokens without a separator or brace: a stage, a field, a declaration, or the head of a block.

    Braces within brackets, as in `[{ name: text }]`, do not end one. `depth` counts the blocks around it, `inside` says
    what the innermost of them holds.
    """

    tokens: list[Token]
    depth: int
    inside: Inside

    @property
    def span(self) -> Span:
        return Span(self.tokens[0].start, self.tokens[-1].end)


@dataclass(slots=True)
class Layout:
    """`tokens` are those of `scanned` that are no comments; in `text` only the newlines are left that end something.

    `unions` are the offsets of each `|` between two schemas, which ends no stage.
    `broken` says that braces do not pair, so that nothing about the structure can be trusted.
    """

    text: str
    scanned: list[Token]
    tokens: list[Token]
    statements: list[Statement] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)
    broken: bool = False
    unions: list[int] = field(default_factory=list)

    @property
    def parsed(self) -> str:
        """The text as the grammar takes it, where `∪` stands between the schemas of a union."""
        signs = list(self.text)
        for start in self.unions:
            signs[start] = "∪"
        return "".join(signs)

    def statement_at(self, offset: int) -> Statement | None:
        """The statement that holds the offset, else the last one before it."""
        starts = [statement.tokens[0].start for statement in self.statements]
        index = bisect_right(starts, offset) - 1
        return self.statements[index] if index >= 0 else None

    def token_at(self, offset: int) -> Token | None:
        """The token that holds the offset, None where there is none."""
        starts = [token.start for token in self.tokens]
        index = bisect_right(starts, offset) - 1
        token = self.tokens[index] if index >= 0 else None
        return token if token and token.end > offset else None

    def block_after(self, statement: Statement) -> Span | None:
        """The block that the statement is the head of, if it is one."""
        braces = list(self._braces(statement))
        return Span(braces[0][0].start, braces[-1][0].end) if braces and braces[-1][1] == 0 else None

    def braces_after(self, statement: Statement) -> set[int]:
        """The offsets where the block behind a head begins, and the arms in it if the head is a `branch`."""
        deepest = 2 if statement.tokens[0].text == "branch" else 1
        return {token.start for token, depth in self._braces(statement) if token.text == "{" and depth <= deepest}

    def elses_after(self, statement: Statement) -> Iterator[Statement]:
        """The heads of the `else` blocks behind that of a faulty `if`, which mean nothing without it."""
        head: Statement | None = statement
        while head is not None and (block := self.block_after(head)) is not None:
            after = next((token for token in self.tokens if token.start >= block.end and token.kind != "newline"), None)
            head = self.statement_at(after.start) if after is not None and after.text in _ELSES else None
            if head is not None:
                yield head

    def without(self, statement: Statement) -> str:
        """The text with a statement blanked, and one `|` beside it, so that no empty stage is left.

        The block behind a faulty head stays, to find the errors in it, but for one that holds no stages. Of a faulty
        `branch` the word stays too, as its arms mean nothing without it.
        """
        first, *rest = statement.tokens
        if first.text == "branch" and statement.inside == "stages" and rest and self.block_after(statement):
            return blank(self.text, [Span(rest[0].start, rest[-1].end)])
        spans = [statement.span]
        block = self.block_after(statement)
        holds_stages = first.text in DECLARATIONS and first.text != "schema"
        if block and (statement.inside == "fields" or (statement.inside == "file" and not holds_stages)):
            spans.append(block)
        index = self.tokens.index(first)
        if first.text in _ELSES:
            # The blocks before and behind it are to be two stages.
            text = blank(self.text, spans)
            return f"{text[: first.start]}|{text[first.start + 1 :]}"
        after = self.tokens.index(statement.tokens[-1], index) + 1
        beside = [next((t for t in self.tokens[after:] if t.kind != "newline"), None)]
        beside.append(next((t for t in reversed(self.tokens[:index]) if t.kind != "newline"), None))
        spans += [token.span for token in beside if token and token.text == "|"][:1]
        return blank(self.text, spans)

    def _braces(self, statement: Statement) -> Iterable[tuple[Token, int]]:
        """The braces of the block behind a statement, each with how deep it opens; 0 for the one that ends it."""
        index = self.tokens.index(statement.tokens[-1]) + 1
        if statement.tokens[0].text == "repeat":  # a common mistake: `repeat 3 | { … }`
            while index < len(self.tokens) and self.tokens[index].text.strip() in ("", "|"):
                index += 1
        if index == len(self.tokens) or self.tokens[index].text != "{":
            return
        depth = 0
        for token in self.tokens[index:]:
            if token.text in ("{", "}"):
                depth += 1 if token.text == "{" else -1
                yield token, depth
            if depth == 0:
                return


def blank(text: str, spans: Iterable[Span], *, newlines: bool = True) -> str:
    """The text with spaces in place of the spans, as long as before; `newlines` says that newlines in them stay."""
    pieces, end = [], 0
    for span in sorted(spans, key=lambda span: span.start):
        pieces += [text[end : span.start], _VISIBLE.sub(" ", text[span.start : span.end])]
        if not newlines:
            pieces[-1] = pieces[-1].replace("\n", " ")
        end = span.end
    return "".join([*pieces, text[end:]])


MAX_NESTING = 64
# What goes on with an `if` behind its block; the second is a mistake.
_ELSES = ("else", "elif")
# The signs behind which a value or a type is due.
BEFORE_RECORD = frozenset({"(", "[", ",", ":", "=", "+", "==", "!="})
_PAIRS = {")": "(", "]": "[", "}": "{"}


def lay_out(source: Source, text: str, *, pipeline: bool, headless: AbstractSet[int] = frozenset()) -> Layout:
    """Lays out `text`, the source with perhaps some parts blanked. Raises `QpError` where it nests too deep.

    `headless` holds the offsets of braces whose heads are among the blanked parts.
    """
    scanned, faults = scan(source, text)
    spaces = [token.span for token in scanned if token.kind == "comment"]
    tokens = [token for token in scanned if token.kind != "comment"]
    layout = Layout(text, scanned, tokens, faults=faults)
    layout.broken = any(fault.code == "QP105" and fault.span.end - fault.span.start == 3 for fault in faults)
    builder = _LayoutBuilder(source, layout, "stages" if pipeline else "file", headless)
    joined = builder.run()
    layout.text = blank(text, [*spaces, *joined], newlines=False).replace("\ufeff", " ")
    return layout


@dataclass(frozen=True, slots=True)
class _Opener:
    """An open bracket or brace. A brace within brackets is `embedded`: it belongs to the statement around it."""

    token: Token
    holds: Inside | None = None
    embedded: bool = False


class _LayoutBuilder:
    """Fills in a layout's statements and faults, token by token.

    `stack` holds the open brackets, `current` the tokens of the statement that is being read. `suspect` is the first
    brace whose closing brace is indented less than it is: if a brace is not closed, it is likely that one. `unopened`
    is the first head without a brace behind it.
    """

    def __init__(self, source: Source, layout: Layout, outermost: Inside, headless: AbstractSet[int]) -> None:
        self.source = source
        self.layout = layout
        self.tokens = layout.tokens
        self.outermost: Inside = outermost
        self.headless = headless
        self.stack: list[_Opener] = []
        self.current: list[Token] = []
        self.suspect: Token | None = None
        self.unopened: list[Token] | None = None
        self.previous: Token | None = None
        self.significant = next_significant(self.tokens)

    def run(self) -> list[Span]:
        """Builds the statements; returns the newlines that end nothing, and what is no part of any."""
        joined: list[Span] = []
        for index, token in enumerate(self.tokens):
            if joined and joined[-1] == token.span:
                continue
            if token.kind == "newline":
                if self._in_brackets() and self._starts_stage(index + 1):
                    self._report_unclosed_brackets()
                if self._in_brackets() or self._continues(index) or self._goes_on_with_block(index):
                    joined.append(token.span)
                elif not self._embedded():
                    self._note_unopened(index)
                    self._end_statement()
                continue
            if token.kind != "sign":
                self.current.append(token)
            elif token.text == "|" and self._in_union(index):
                self.layout.unions.append(token.start)
                self.current.append(token)
            elif token.text == "|" and not self._in_brackets():
                self._end_statement()
                joined += self._check_pipe(index)
            elif token.text == "{":
                self._open_brace(token)
            elif token.text == "}":
                self._report_unclosed_brackets()
                if self._embedded():
                    self.current.append(token)
                else:
                    self._end_statement()
                self._close_bracket(token)
            else:
                self.current.append(token)
                if token.text in "([":
                    self._push(_Opener(token))
                elif token.text in ")]":
                    self._close_bracket(token)
            self.previous = token
        self._report_unclosed_brackets()
        self._end_statement()
        if self.stack and not self.layout.broken:
            opener = self.suspect or self.stack[-1].token
            self._fault("QP107", "this `{` is never closed", opener, "opened here", fatal=True)
        return joined

    @property
    def inside(self) -> Inside:
        """What the innermost open brace holds."""
        return next((opener.holds for opener in reversed(self.stack) if opener.holds), self.outermost)

    def _in_brackets(self) -> bool:
        return bool(self.stack) and self.stack[-1].holds is None

    def _embedded(self) -> bool:
        return bool(self.stack) and self.stack[-1].embedded

    def _end_statement(self) -> None:
        if self.current:
            braces = sum(opener.holds is not None for opener in self.stack)
            depth = braces + (self.outermost == "stages")
            self.layout.statements.append(Statement(self.current, depth, self.inside))
            self.current = []

    def _note_unopened(self, index: int) -> None:
        """Notes a head that ends without a brace at the newline `index`; of a program with stages below it is told."""
        words = [token.text for token in self.current[:3]]
        outside = bool(words) and words[0] in DECLARATIONS
        if not words or words[0] not in _BLOCK_HEADS or "from" in words or outside != (self.inside == "file"):
            return
        self.unopened = self.unopened or self.current
        after = self.significant[index]
        if words[0] == "program" and after < len(self.tokens) and self.tokens[after].text in STAGES:
            self._report_unopened()

    def _report_unopened(self, closing: Token | None = None) -> None:
        """Reports the head without a brace, after which the structure of the text cannot be trusted."""
        assert self.unopened is not None
        end, word = self.unopened[-1].end, self.unopened[0].text
        secondary = () if closing is None else (Label(closing.span, "closes nothing else"),)
        edit, message = Edit(Span(end, end), " {"), f"the block of this `{word}` does not begin with `{{`"
        fault = Diagnostic(
            "QP107", message, Span(end, end), "expected `{`", secondary, help="open it with `{`", edit=edit
        )
        self.layout.faults.append(fault)
        self.layout.broken = True

    def _open_brace(self, token: Token) -> None:
        """A brace ends its head, but for that of a record."""
        inside = self.inside
        if (inside == "fields" and (self._in_brackets() or self._embedded())) or self._begins_record():
            self.current.append(token)
            self._push(_Opener(token, "fields", embedded=True))
            return
        self._report_unclosed_brackets()
        head = self.current[0].text if self.current else ""
        self._check_head(token)
        self._end_statement()
        fields = inside == "fields" or (inside == "file" and head == "schema")
        arms = inside in ("stages", "arms") and head in ("branch", "strategy")
        self._push(_Opener(token, "fields" if fields else "arms" if arms else "stages"))

    def _check_head(self, token: Token) -> None:
        """Reports a block whose head breaks off where a value is due, as a record would begin there too."""
        words = [word.text for word in self.current]
        stage = STAGES.get(words[0]) if words and self.inside == "stages" else None
        if stage is None or len(self.layout.faults) >= MAX_FAULTS:
            return
        if words in (["if"], ["repeat"]) or (len(words) > 1 and words[-1] in ("in", "until", "by")):
            due = stage.first if len(words) == 1 else "an expression"
            notes = (f"form: {stage.usage}",)
            message = f"expected {due}, found `{{`"
            help = (
                "write `repeat 40 until CONDITION { … }`, of which 40 is the most rounds"
                if words[0] == "repeat"
                else None
            )
            fault = Diagnostic("QP109", message, token.span, f"expected {due}", notes=notes, help=help)
            self.layout.faults.append(fault)

    def _begins_record(self) -> bool:
        """Whether a brace here begins a record, which is a type or a value, and no block."""
        before = self.previous.text if self.previous is not None and self.current else ""
        if self.inside == "file" and self.current and self.current[0].text == "program":
            return before == "->" or (before in BEFORE_RECORD and self._in_brackets())
        return self.inside == "stages" and (before in BEFORE_RECORD or before in ("as", "return"))

    def _in_union(self, index: int) -> bool:
        """Whether a `|` parts two schemas and no stages: behind `as NAME` or `-> NAME`, before a name.

        So it does behind the first schema of a list, or of a field.
        """
        listed = self._in_brackets() and self.stack[-1].token.text == "["
        in_type = listed or (self.inside == "fields" and not self._in_brackets())
        before = len(self.current) - 2
        while before > 0 and self.current[before].text == ".":
            before -= 2
        after = self.significant[index + 1]
        if before < 0 or (self._in_brackets() and not listed) or after == len(self.tokens):
            return False
        name, *behind = self.tokens[after : after + 2]
        while behind and behind[0].text == ".":
            after += 2
            behind = self.tokens[after + 1 : after + 2]
        last = {"]", "|"} if listed else {",", *_BEHIND_SCHEMA} if in_type else _BEHIND_SCHEMA
        ends = not behind or behind[0].kind == "newline" or behind[0].text in last
        is_schema = ends and name.kind == "word" and name.text not in STAGES
        starts = ("[", ":", "|") if in_type else ("as", "->", "|")
        is_schema = is_schema and not (in_type and _NO_SCHEMAS & {name.text, self.current[before + 1].text})
        return is_schema and self.current[before].text in starts

    def _push(self, opener: _Opener) -> None:
        self.stack.append(opener)
        if len(self.stack) > MAX_NESTING:
            message = f"brackets nest over {MAX_NESTING} deep here"
            raise QpError([Diagnostic("QP103", message, opener.token.span, "one too many")], self.source)

    def _close_bracket(self, token: Token) -> None:
        opener = _PAIRS[token.text]
        if self.stack and self.stack[-1].token.text == opener:
            start = self.stack.pop().token
            if opener == "{" and self._begins_line(token) and self._indent(token) < self._indent(start):
                self.suspect = self.suspect or start
            return
        if opener == "{" and not self.stack and self.unopened is not None:
            if not self.layout.broken:
                self._report_unopened(token)
            return
        message = f"this `{token.text}` closes nothing"
        secondary: tuple[Label, ...] = ()
        if self._in_brackets():
            inner = self.stack.pop().token
            message = f"expected the bracket that closes `{inner.text}`, found `{token.text}`"
            secondary = (Label(inner.span, "opened here"),)
        self._fault("QP107", message, token, secondary=secondary, fatal=opener == "{")

    def _report_unclosed_brackets(self) -> None:
        while self._in_brackets():
            token = self.stack.pop().token
            self._fault("QP107", f"this `{token.text}` is never closed", token, "opened here")

    def _check_pipe(self, index: int) -> list[Span]:
        """Reports a `|` that has no stage on one side, or is where there are none. Gives what is then left out."""
        token = self.tokens[index]
        if self.inside != "stages":
            items = {"file": "declarations", "fields": "fields", "arms": "arms"}[self.inside]
            behind = self.tokens[index + 1].text if index + 1 < len(self.tokens) else ""
            absent = self.inside == "fields" and behind.lower() in ("none", "null")
            other = "a field that may be absent has a `?`: `age: int?`" if absent else "put each on its own line"
            self._fault("QP113", f"`|` parts stages, not {items}", token, help=other)
            return [token.span, self.tokens[index + 1].span] if absent else []
        after = self.significant[index + 1]
        if self.previous is None or self.previous.text in ("|", "{"):
            doubled = self.previous is not None and self.previous.text == "|" and self.previous.end == token.start
            help = "alternatives are joined by `or`" if doubled else None
            self._fault("QP113", "expected a stage before this `|`", token, help=help)
        elif after == len(self.tokens) or self.tokens[after].text == "}":
            self._fault("QP113", "expected a stage after this `|`", token)
        return []

    def _continues(self, index: int) -> bool:
        """Whether the statement goes on behind the newline at `index`."""
        if not self.current:
            return False
        index = self.significant[index]
        if index == len(self.tokens):
            return False
        token = self.tokens[index]
        if token.kind == "word" and self.inside != "fields":
            after = self.tokens[index + 1] if index + 1 < len(self.tokens) else token
            named = after.kind in ("word", "string") and after is not token
            is_like = token.text == "like" and after.kind == "word" and after is not token
            other = token.text == "or" and self.current[0].text == "program"
            clause = token.text in CLAUSES or (token.text in ("draft", "of") and named) or is_like or other
            return clause or after.text == "="
        return token.text in ("->", "{") and token.start not in self.headless

    def _goes_on_with_block(self, index: int) -> bool:
        """Whether an `else` or `or` on the next line goes on with the `if` or `strategy` whose block ends here."""
        index = self.significant[index]
        ended = self.previous is not None and self.previous.text == "}"
        return ended and index < len(self.tokens) and self.tokens[index].text in (*_ELSES, "or")

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

    def _begins_line(self, token: Token) -> bool:
        """Whether nothing stands before the token on its line."""
        line, column = self.source.position(token.start)
        return not self.source.line(line)[: column - 1].strip()

    def _indent(self, token: Token) -> int:
        """The indent of the token's line."""
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
        """Reports a fault at a token; after a `fatal` one the structure of the text cannot be trusted."""
        if len(self.layout.faults) < MAX_FAULTS:
            self.layout.faults.append(Diagnostic(code, message, token.span, label, secondary, help=help))
        self.layout.broken |= fatal
