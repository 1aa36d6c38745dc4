"""A row's context, which is all text before what a model generates, and how it is encoded for the model.

A chat template is rendered with marks in the place of the messages' texts, a thought apart from its answer, so it is
known which characters are the template's. Special tokens are recognized only in those, so an input cannot forge a turn.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, Tokenizer

from qpdsl.executor.text.chat_template import ContextError, kept_with_its_tokenizer, render
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.text.thinking import Thinking
from qpdsl.executor.text.tool_format import ToolFormat, introduction, marked_tools, tool_format
from qpdsl.grammar.printable import shorten

# A text, and whether it is trusted: whether the tokenizer's added tokens count in it.
Piece = tuple[str, bool]
_MAX_ENCODINGS = 1024
# Texts of more characters are encoded beside the event loop, which others wait for: it may take ten milliseconds.
_LONG = 20_000
# Stands for a text of a message, by its number.
_MARK = re.compile(r"qpdsl(\d+)message\1x")
# Stands for the text of a turn whose tokens stay as they are.
_KEPT = "qpdslkept"
# What a name, an id or a key in a tool call is of; as it stands in the template's own text, it must not forge a turn.
_NAME = re.compile(r"[\w.:-]*")
_NAMES = ("id", "type", "name", "tool_call_id")
_Way = tuple[Piece, "_Way | None"]
Result = TypeVar("Result")


class Turn(NamedTuple):
    """One turn of a conversation: who speaks, what is said, and what the assistant thought before it said it.

    `calls` are the message's fields for tools (`tool_calls`, `tool_call_id`, `name`) as a JSON object, or empty.
    """

    role: str
    text: str
    thought: str = ""
    calls: str = ""


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A turn in the tokens that a model drew, which came behind the context `before` as `switch` rendered it.

    It is the turn `number` of the conversation; its thought is `open` where it was not closed.
    """

    before: Context
    model: str
    tokens: tuple[int, ...]
    said: tuple[Piece, ...]
    number: int
    switch: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """Chat turns, or the pieces of a plain prompt: text, and whether the program's author wrote it.

    The first `opening` of the pieces are those of the prompt that the context began with; all of them where it is None.
    `grown`: the context holds text that was generated. `kept`: the model's last turn, where it is to stay as it was
    drawn; other models are shown its text. `tools` are those that a model is shown, as a JSON list, or empty.
    """

    turns: tuple[Turn, ...] = ()
    prompt: tuple[Piece, ...] = ()
    opening: int | None = field(default=None, compare=False)
    grown: bool = field(default=False, compare=False)
    kept: KeptTurn | None = None
    tools: str = ""

    @property
    def problem(self) -> str:
        """What a verifier is shown where the program does not say: the first user turn, or the first prompt.

        Empty in a conversation without a user turn.
        """
        if self.turns:
            return self._first("user")
        return "".join(text for text, _ in self.prompt[: self.opening])

    @property
    def characters(self) -> int:
        """How many it has, without those of a chat template."""
        turns = (len(turn.text) + len(turn.thought) for turn in self.turns)
        return sum(turns) + sum(len(text) for text, _ in self.prompt)

    @property
    def system(self) -> str:
        """The system turn; empty without one."""
        return self._first("system")

    def _first(self, role: str) -> str:
        return next((turn[1] for turn in self.turns if turn[0] == role), "")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, and the span [start, end) of each in its characters."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    def last_before(self, end: int) -> int:
        """The index of the last token of the first `end` characters. Raises ContextError where one crosses `end`."""
        index = bisect_right(self.spans, end, key=lambda span: span[1]) - 1
        if index < 0 or (index + 1 < len(self.spans) and self.spans[index + 1][0] < end):
            raise ContextError("its tokenizer has tokens that cross the end of a step")
        return index


def encode(
    tokenizer: TextTokenizer,
    context: Context,
    thinking: Thinking | None = None,
    switch: str = "",
    *,
    within_last: bool = False,
    plain_tools: bool = False,
) -> tuple[int, ...]:
    """Token ids of a context, up to where the model's own text begins. Raises ContextError.

    Text that the program's author did not write never becomes a guarded token, so an input cannot forge a turn: those
    are the special tokens, and the added ones that the chat template writes. Where there is nothing to forge, the ids
    are those of `apply_chat_template`, or of the tokenizer's bos and the prompt.

    `thinking` says how the model thinks: each thought is put where its template has it, and text of an assistant with
    the marks of a thought is parted first. `switch` is one of `thinking.switches`, or "" for what the template does by
    itself. With `within_last` the last turn, the assistant's, goes on: as `continue_final_message` has it.
    With `plain_tools` tools and their calls are text, whatever the template knows of them.
    """
    if context.turns:
        turns = [Turn(*turn) for turn in context.turns]
        arguments = {} if thinking is None else thinking.arguments(switch)
        pieces = _chat_pieces(tokenizer, turns, thinking, arguments, within_last, context.tools, plain_tools)
        return encode_pieces(tokenizer, pieces)
    return automatic_prefix(tokenizer) + encode_pieces(tokenizer, list(context.prompt))


def encode_after(
    tokenizer: TextTokenizer,
    context: Context,
    number: int,
    thinking: Thinking | None,
    switch: str,
    *,
    plain_tools: bool = False,
) -> tuple[int, ...]:
    """The ids of a conversation behind the text of its turn of that number, the assistant's. Raises ContextError."""
    kept = _KEPT
    while any(kept == turn.text or kept == turn.thought for turn in context.turns):
        kept += "t"
    turns = [*context.turns[:number], Turn("assistant", kept), *context.turns[number + 1 :]]
    arguments = {} if thinking is None else thinking.arguments(switch)
    pieces = _chat_pieces(tokenizer, turns, thinking, arguments, False, context.tools, plain_tools)
    place = next((place for place, piece in enumerate(pieces) if piece == (kept, False)), None)
    if place is None:
        raise ContextError("its chat template leaves out a turn whose tokens are to stay")
    return encode_pieces(tokenizer, pieces[place + 1 :])


async def read_beside(characters: int, function: Callable[[], Result]) -> Result:
    """What a function makes of a text of so many characters: beside the event loop, where that takes long."""
    return function() if characters <= _LONG else await asyncio.to_thread(function)


def encode_pieces(tokenizer: TextTokenizer, pieces: list[Piece]) -> tuple[int, ...]:
    """Token ids of text in pieces. Only trusted pieces give guarded tokens."""
    whole = tuple(tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False))
    return whole if _only_trusted(tokenizer, pieces, whole) else _encode_separately(tokenizer, pieces).tokens


def encode_located(
    tokenizer: TextTokenizer, pieces: list[Piece], whole: Callable[[str], Encoded] | None = None
) -> Encoded:
    """As `encode_pieces`, with the span of each token in the text of all pieces.

    `whole` encodes a text with its added tokens, as `ResumedEncoder.encode` does; by default `located`.
    """
    text = "".join(text for text, _ in pieces)
    encoded = located(tokenizer.backend_tokenizer, text) if whole is None else whole(text)
    return encoded if _only_trusted(tokenizer, pieces, encoded.tokens) else _encode_separately(tokenizer, pieces)


def located(tokenizer: Tokenizer, text: str) -> Encoded:
    """The tokens of a text, added tokens included, with their spans."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return Encoded(tuple(encoding.ids), tuple(encoding.offsets))


def _only_trusted(tokenizer: TextTokenizer, pieces: list[Piece], whole: tuple[int, ...]) -> bool:
    """Whether the guarded tokens in `whole` are those of the trusted pieces, in number and order."""
    guarded = _guarded(tokenizer)
    trusted_ids = [id for text, trusted in pieces if trusted for id in _guarded_in(tokenizer, text)]
    return [id for id in whole if id in guarded] == trusted_ids


@kept_with_its_tokenizer
def _guarded(tokenizer: TextTokenizer) -> dict[int, str]:
    """The added tokens that make up the frame of a conversation, by id: special ones, and those of the template.

    Others, such as runs of spaces, are text like any other.
    """
    template = str(tokenizer.chat_template or "")
    added = tokenizer.added_tokens_decoder.items()
    return {
        id: token.content
        for id, token in added
        if token.special or (token.content.strip() and token.content in template)
    }


@kept_with_its_tokenizer
def _guarded_in(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    """The guarded tokens in a piece of a template or prompt. A run has the same few pieces."""
    guarded = _guarded(tokenizer)
    return tuple(id for id in tokenizer.encode(text, add_special_tokens=False) if id in guarded)


def parts_of(tokenizer: TextTokenizer, pieces: Sequence[Piece]) -> Iterator[tuple[str, int | None]]:
    """Texts that stand together, and between them the guarded tokens of trusted pieces: their text and their id."""
    names = {content: id for id, content in _guarded(tokenizer).items()}
    if not any(name in text for text, trusted in pieces if trusted for name in names):
        if run := "".join(text for text, _ in pieces):
            yield run, None
        return
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    run = ""
    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                if run:
                    yield run, None
                run = ""
                yield part, names[part]
            else:
                run += part
    if run:
        yield run, None


def _encode_separately(tokenizer: TextTokenizer, pieces: list[Piece]) -> Encoded:
    """As `encode_located`, with all text between the guarded tokens of trusted pieces encoded without such tokens."""
    names = {content: id for id, content in _guarded(tokenizer).items()}
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    plain, renumbered = _without_guarded_tokens(tokenizer)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    # The text since the last added token, and its end in the text of all pieces.
    run, length = "", 0

    def end_run() -> None:
        encoded = plain.encode(run, add_special_tokens=False)
        ids.extend(renumbered.get(id, id) for id in encoded.ids)
        spans.extend((length - len(run) + start, length - len(run) + end) for start, end in encoded.offsets)

    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                end_run()
                run = ""
                ids.append(names[part])
                spans.append((length, length + len(part)))
            else:
                run += part
            length += len(part)
    end_run()
    return Encoded(tuple(ids), tuple(spans))


@kept_with_its_tokenizer
def _without_guarded_tokens(tokenizer: TextTokenizer) -> tuple[Tokenizer, dict[int, int]]:
    """The tokenizer that reads guarded tokens as text, and the ids of its other added tokens by those that it gives."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    guarded = _guarded(tokenizer)
    kept = [token for token in backend["added_tokens"] if token["id"] not in guarded]
    backend["added_tokens"] = []
    # It names special tokens, which are removed.
    backend["post_processor"] = None
    plain = Tokenizer.from_str(json.dumps(backend))
    plain.add_tokens([AddedToken(**{name: value for name, value in token.items() if name != "id"}) for token in kept])
    given = ((plain.token_to_id(token["content"]), token["id"]) for token in kept)
    return plain, {mine: theirs for mine, theirs in given if mine is not None}


def automatic_prefix(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The ids that the tokenizer puts before any text, such as bos; not those after it, which would end the text."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("a", add_special_tokens=True)
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return tuple(ids[:start])
    return ()


def chat_frame(
    tokenizer: TextTokenizer, turns: Sequence[tuple[str, str | None]], *, to_go_on: bool = True
) -> list[str | int]:
    """The chat template rendered around turns (role, text), with the generation prompt after them if `to_go_on`.

    Where a turn's text is None, the result has the turn's number in its place. Raises ContextError.
    """
    messages = [
        {"role": role, "content": _mark(index) if text is None else text} for index, (role, text) in enumerate(turns)
    ]
    return _parts(render(tokenizer, messages, to_go_on=to_go_on), len(turns))


def _mark(index: int) -> str:
    """What replaces a text, so that its place is found whatever it says."""
    return f"qpdsl{index}message{index}x"


def _parts(rendered: str, marks: int) -> list[str | int]:
    """The template's own text, and between it the numbers of the marks."""
    parts: list[str | int] = []
    end = 0
    for mark in _MARK.finditer(rendered):
        if (index := int(mark[1])) < marks:
            parts += [rendered[end : mark.start()], index]
            end = mark.end()
    return [part for part in (*parts, rendered[end:]) if part != ""]


def _chat_pieces(
    tokenizer: TextTokenizer,
    turns: Sequence[Turn],
    thinking: Thinking | None,
    arguments: Mapping[str, Any],
    within_last: bool,
    tools: str = "",
    plain_tools: bool = False,
) -> list[Piece]:
    """The rendered chat template as pieces, of which the texts of messages and of tools are not trusted."""
    texts: list[str] = []
    format = ToolFormat() if plain_tools or not tools else tool_format(tokenizer)
    if tools:
        turns = plain_turns(turns, tools, format)

    def marked(text: str) -> str:
        texts.append(text)
        return _mark(len(texts) - 1) if text else ""

    said = [_message(turn, thinking, str) for turn in turns]
    shape = json.dumps([_message(turn, thinking, marked) for turn in turns])
    own = dict(arguments)
    if format.shows:
        own["tools"] = marked_tools(tools, str)
        arguments = {**arguments, "tools": marked_tools(tools, marked)}
    # Some templates write the day.
    frame = _frame(tokenizer, shape, json.dumps(arguments), within_last, len(texts), date.today())
    pieces = _matched(render(tokenizer, said, within_last=within_last, arguments=own), frame, texts)
    if pieces is None:
        raise ContextError("its chat template rewrites the messages, so their text cannot be told from its own")
    return pieces


def plain_turns(turns: Sequence[Turn], tools: str, format: ToolFormat) -> Sequence[Turn]:
    """Turns with what a template of that format does not write of tools as text."""
    if tools and not format.shows:
        words = introduction(tools)
        if turns and turns[0].role == "system":
            turns = [turns[0]._replace(text=f"{turns[0].text}\n\n{words}"), *turns[1:]]
        else:
            turns = [Turn("system", words), *turns]
    if not format.is_plain:
        return turns
    plain: list[Turn] = []
    for came, same in groupby(turns, lambda turn: turn.role == "tool"):
        group = [*same]
        # What several tools gave is one turn, as many templates have roles take turns.
        plain += [Turn("user", "\n".join(turn.text for turn in group))] if came else map(_plain_turn, group)
    return plain


def _plain_turn(turn: Turn) -> Turn:
    """A turn that calls tools as one of a conversation without any, which says what a model may write there."""
    calls = [call["function"] for call in json.loads(turn.calls or "{}").get("tool_calls", ())]
    spelt = json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=False) if calls else ""
    return turn._replace(text=turn.text + spelt, calls="") if turn.calls else turn


@kept_with_its_tokenizer
def _frame(
    tokenizer: TextTokenizer, shape: str, arguments: str, within_last: bool, marks: int, day: date
) -> list[str | int]:
    return _parts(render(tokenizer, json.loads(shape), within_last=within_last, arguments=json.loads(arguments)), marks)


def _message(turn: Turn, thinking: Thinking | None, text_of: Callable[[str], str]) -> dict[str, Any]:
    """A turn as a template takes it, each of its texts as `text_of` has it."""
    if thinking is None or turn.role != "assistant":
        message: dict[str, Any] = {"role": turn.role, "content": text_of(turn.text)}
    else:
        begin, thought, end, text = thinking.parted(turn.thought, turn.text)
        shown, answer = text_of(thought), text_of(text)
        if thinking.field is None:
            message = {"role": turn.role, "content": begin + shown + end + answer}
        else:
            message = {"role": turn.role, "content": answer} | ({thinking.field: shown} if thought else {})
    return message | _calls(json.loads(turn.calls), text_of) if turn.calls else message


def _calls(fields: Mapping[str, Any], text_of: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a message for tools: names and ids as they are, the values of arguments as `text_of` has them."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, str) and name not in _NAMES:
            return text_of(value)
        if isinstance(value, str) and not _NAME.fullmatch(value):
            raise ContextError(f"{shorten(value, 40)} is no {name} of a tool")
        if isinstance(value, list):
            return [of(name, item) for item in value]
        if isinstance(value, dict):
            if (odd := next((key for key in value if not _NAME.fullmatch(key)), None)) is not None:
                raise ContextError(f"{shorten(odd, 40)} is no name in the call of a tool")
            # What a tool is called with may have names of any sort.
            return {key: of("" if name in ("", "arguments") else key, item) for key, item in value.items()}
        return value

    return {name: of(name, value) for name, value in fields.items()}


def _matched(rendered: str, frame: Sequence[str | int], texts: Sequence[str]) -> list[Piece] | None:
    """A rendered conversation in pieces, by its frame; None where its texts are not those of the messages."""
    # By where each ends, the ways to get there: the last piece, and the way before it.
    ways: dict[int, _Way | None] = {0: None}
    for part in frame:
        trusted = isinstance(part, str)
        choices = [part] if isinstance(part, str) else _written(texts[part])
        longer: dict[int, _Way | None] = {}
        for end, way in ways.items():
            for text in choices:
                if rendered.startswith(text, end):
                    longer.setdefault(end + len(text), ((text, trusted), way))
        ways = longer
    if len(rendered) not in ways:
        return None
    pieces: list[Piece] = []
    at = ways[len(rendered)]
    while at is not None:
        pieces.append(at[0])
        at = at[1]
    return pieces[::-1]


def _written(text: str) -> list[str]:
    """How a template may write a text: as it is, without white space around, or within a string of JSON."""
    bare = [strip(text, what) for what in (None, "\n") for strip in (str.strip, str.lstrip, str.rstrip)]
    return list(dict.fromkeys([text, *bare, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]))


@kept_with_its_tokenizer
def template_strips(tokenizer: TextTokenizer) -> bool:
    """Whether the chat template strips a user's text. Raises ContextError."""
    return " x " not in render(tokenizer, [{"role": "user", "content": " x "}])


class ResumedEncoder:
    """Encodes a text from the last cut that it shares with a text encoded before.

    A cut is the place before an added token that is matched as it stands (not normalized, and without taking the space
    around it) and is no part of another one. Tokenizers split the text at such tokens before anything else, so what
    lies before and after a cut is encoded by itself.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        added = tokenizer.added_tokens_decoder
        names = [token.content for token in added.values()]
        self._cuts = {
            id: token.content
            for id, token in added.items()
            if not (token.normalized or token.lstrip or token.rstrip or token.single_word)
            if not any(token.content in name for name in names if name != token.content)
        }
        self._pattern = re.compile("|".join(map(re.escape, self._cuts.values())) or "(?!)")
        # By the text up to the end of an added token: the encoding of what lies before that token.
        self._prefixes: OrderedDict[str, Encoded] = OrderedDict()

    def encode(self, text: str) -> Encoded:
        """The tokens of the whole text, with their spans."""
        encoded = self._encoded(text)
        for index in range(len(encoded.tokens) - 1, 0, -1):
            start, end = encoded.spans[index]
            if self._cuts.get(encoded.tokens[index]) == text[start:end]:
                self._keep(text[:end], Encoded(encoded.tokens[:index], encoded.spans[:index]))
                break
        return encoded

    def _encoded(self, text: str) -> Encoded:
        for match in reversed(list(self._pattern.finditer(text))):
            before = self._prefixes.get(text[: match.end()])
            if before is not None:
                cut = match.start()
                rest = located(self._backend, text[cut:])
                spans = tuple((start + cut, end + cut) for start, end in rest.spans)
                return Encoded(before.tokens + rest.tokens, before.spans + spans)
        return located(self._backend, text)

    def _keep(self, text: str, encoded: Encoded) -> None:
        self._prefixes[text] = encoded
        self._prefixes.move_to_end(text)
        if len(self._prefixes) > _MAX_ENCODINGS:
            self._prefixes.popitem(last=False)
