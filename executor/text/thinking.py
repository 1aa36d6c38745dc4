"""How a model thinks before it answers, found by asking its chat template: there is no parser for each family.

The template is rendered with marks for a thought and its answer. What stands before the one and between the two is how
a thought is opened and closed; a user's turn after them shows what becomes of thoughts that are past; and its
generation prompt, with and without each argument that it knows, shows how thinking is switched.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from qpdsl.executor.text.chat_template import ContextError, Message, kept_with_its_tokenizer, render
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.grammar.model_id import thought_marks
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import THOUGHT_FIELDS

# Pairs that published models write around thoughts, for templates that know no field for one.
KNOWN_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<mm:think>", "</mm:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<thought>", "</thought>"),
    ("<unused94>thought", "<unused95>"),
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NO_THOUGHT = frozenset({"none", "off", "disabled", "no_think"})
# Marks of a conversation that a template is asked about; each is found again in what it renders.
_USER, _NEXT, _THOUGHT, _ANSWER, _TOOL = (f"qpdsl{word}mark" for word in ("user", "next", "thought", "answer", "tool"))
_TAG = re.compile(r"[<\[◁]\|?[^<>\[\]◁▷\s]*(?:think|reason|thought)[^<>\[\]◁▷\s]*[>\]▷]", re.IGNORECASE)
_ARGUMENT = re.compile(r"(?<![.\w'\"])[a-z_]*(?:think|reason)[a-z_]*(?![\w'\"(])")
_WORD = re.compile(r"['\"]([a-z_]{2,12})['\"]")
# Arguments that are asked for first, and how many in all.
_USUAL, _MOST_ARGUMENTS = ("enable_thinking", "thinking", "reasoning_effort"), 12
# Seconds after which a template is asked no more: usual ones take a fiftieth.
_ASKING = 2.0
# Efforts that a template writes for the model to read, whatever they are; and a word that is none.
_USUAL_EFFORTS, _OTHER = ("low", "medium", "high"), "qpdslword"

Switches = Mapping[str, Mapping[str, Any]]


class TurnParts(NamedTuple):
    """An assistant's turn: what opens its thought, the thought, what closes it, and the answer."""

    begin: str
    thought: str
    end: str
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model thinks before it answers, as its chat template has it.

    `open` stands before a thought in the model's turn, and `close` between the thought and the answer. `history` is
    what becomes of the thoughts of former turns: "since_user" keeps those after the last user turn, as while tools run.
    `switches` has the template's arguments by "on", "off", and the efforts that it knows; `default` is what it does
    without. Under those of `opened` ("" stands for none) the generation prompt itself ends with `open`. A thought goes
    into the `field` of a message; where that is None, it stands in the content, between the marks. `found` says how
    all this was found, for people.
    """

    open: str
    close: str
    history: Literal["kept", "dropped", "since_user"] = "kept"
    switches: Switches = dataclasses.field(default_factory=dict, hash=False)
    default: Literal["on", "off"] = "on"
    opened: frozenset[str] = frozenset()
    field: str | None = None
    found: str = "the program"

    @property
    def open_mark(self) -> str:
        """`open` without white space around it."""
        return self.open.strip()

    @property
    def close_mark(self) -> str:
        """`close` without white space around it."""
        return self.close.strip()

    @property
    def data(self) -> dict[str, Any]:
        """The description as data."""
        switches = {name: dict(given) for name, given in self.switches.items()}
        return {**asdict(replace(self, switches={})), "switches": switches, "opened": sorted(self.opened)}

    @property
    def in_words(self) -> dict[str, str]:
        """The description for people: what is said of each thing."""
        told = [f"{name} (by default)" if name == self.default else name for name in self.switches]
        opener = "the chat template" if "on" in self.opened else "the model"
        return {
            "opened by": f"{json.dumps(self.open, ensure_ascii=False)}, which {opener} writes",
            "closed by": json.dumps(self.close, ensure_ascii=False),
            "think=": ", ".join(told if "off" in self.switches else [*told, "off (as an empty thought)"]),
            "thoughts of past turns": {
                "kept": "are kept",
                "dropped": "are dropped",
                "since_user": "are kept since the last user turn",
            }[self.history],
            "field of a message": self.field or "none: they stand in its content",
        }

    def arguments(self, switch: str) -> Mapping[str, Any]:
        """What the template is given for a switch, "" for none. Raises ContextError for one that it does not know."""
        if switch and switch not in self.switches:
            known = ", ".join(self.switches) or "none"
            raise ContextError(f"its chat template does not know `think={switch}`; it knows {known}")
        return self.switches[switch] if switch else {}

    def knows(self, switch: str) -> bool:
        """Whether a model can be asked to think so; "on" and "off" are had without the template too."""
        return switch in ("", "on", "off", *self.switches)

    @property
    def efforts(self) -> str:
        """The efforts that the template knows, in words."""
        names = [f'"{name}"' for name in self.switches if name not in ("on", "off")]
        return listed(names, last="and") if names else "none"

    def parted(self, thought: str, text: str) -> TurnParts:
        """An assistant's turn in its parts; where no thought is given, the one between the marks in its text.

        A text that has the marks more than once, or has a thought in its middle, is left whole.
        """
        if thought:
            return TurnParts(self.open, thought, self.close, text)
        before, end, after = text.partition(self.close_mark)
        lead = before.lstrip()
        begun = lead.startswith(self.open_mark)
        inner = lead[len(self.open_mark) :] if begun else before
        marked = self.open_mark and self.open_mark in inner + after
        if not end or marked or self.close_mark in after:
            return TurnParts("", "", "", text)
        thought, answer = inner.strip("\n") if inner.strip() else "", after.lstrip("\n")
        begin = before[: len(before) - len(inner.lstrip("\n"))]
        close = before[len(begin) + len(thought) :] + end + after[: len(after) - len(answer)]
        return TurnParts(begin, thought, close, answer)


def given_thinking(text: str) -> Thinking | None:
    """What a program says of a model: `"<think>|</think>"`, or `none` if it does not think. Raises ValueError."""
    marks = thought_marks(text)
    return None if marks is None else Thinking(*marks)


def find_thinking(tokenizer: TextTokenizer) -> Thinking | None:
    """How a model thinks, by its tokenizer; None where nothing says that it does."""
    return thinking_of(tokenizer)[0]


def thinking_of(tokenizer: TextTokenizer, said: str | None = None) -> tuple[Thinking | None, str]:
    """How a model thinks, and why it is used as one that does not, where something says that it does.

    With what a program says of it (see `given_thinking`), the template is asked what else there is to know of those
    marks. Raises ValueError.
    """
    given = None if said is None else given_thinking(said)
    return (None, "") if given is None and said is not None else _asked(tokenizer, given)


@kept_with_its_tokenizer
def _asked(tokenizer: TextTokenizer, given: Thinking | None) -> tuple[Thinking | None, str]:
    return _Asking(tokenizer).answer(given) if tokenizer.chat_template else (given, "")


class _Asking:
    """A chat template that is asked how its model thinks."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._source = str(tokenizer.chat_template)
        names = sorted(set(_ARGUMENT.findall(self._source)), key=lambda name: (name not in _USUAL, name))
        self._names = names[:_MOST_ARGUMENTS]
        self._seconds = 0.0
        self._prompts: dict[str, str | None] = {}
        self._flags = [name for name in self._names if self._is_flag(name)]

    def answer(self, given: Thinking | None) -> tuple[Thinking | None, str]:
        """How the model thinks, and what speaks against it where something says that it does."""
        for base in self._bases():
            for name in sorted(THOUGHT_FIELDS, key=lambda field: not self._reads(field)):
                found = self._in_field(name, base)
                if found is not None and (given is None or _same_marks(found, given)):
                    return self._finished(replace(found, found="the chat template"), base)
        if given is not None:
            known = self._finished(self._in_content(given), self._on())[0]
            return given if known is None else known, ""
        note = ""
        for pair in self._pairs():
            thinking, note = self._finished(self._in_content(pair), self._on())
            if thinking is not None:
                return thinking, ""
        return None, note

    # What the template renders.

    def _rendered(
        self, messages: Sequence[Message], arguments: Mapping[str, Any], *, to_go_on: bool = False
    ) -> str | None:
        if self._seconds > _ASKING:
            return None
        start = time.monotonic()
        try:
            return render(self._tokenizer, messages, to_go_on=to_go_on, arguments=arguments)
        except ContextError:
            return None
        finally:
            self._seconds += time.monotonic() - start

    def _prompt(self, arguments: Mapping[str, Any]) -> str | None:
        """A user's turn and the generation prompt."""
        key = json.dumps(arguments)
        if key not in self._prompts:
            self._prompts[key] = self._rendered([_said("user", _USER)], arguments, to_go_on=True)
        return self._prompts[key]

    def _reads(self, name: str) -> bool:
        """Whether the template may read a field of a message."""
        return re.search(rf"[.'\"]{name}\b", self._source) is not None

    def _is_flag(self, name: str) -> bool:
        """Whether an argument of the template is true or false, and matters."""
        true, false, other = (self._prompt({name: value}) for value in (True, False, _OTHER))
        return true != false and other in (true, false, self._prompt({}))

    def _tail(self, arguments: Mapping[str, Any]) -> str:
        """What follows the user's text in the generation prompt."""
        return (self._prompt(arguments) or "").rpartition(_USER)[2]

    # What opens and closes a thought.

    def _bases(self) -> Iterator[Mapping[str, Any]]:
        """Arguments under which thoughts may be shown."""
        yield {}
        for name in self._flags:
            yield {name: True}

    def _in_field(self, name: str, base: Mapping[str, Any]) -> Thinking | None:
        """How the template writes a thought that has a field of its own; None where it does not."""
        user, thinks = _said("user", _USER), {**_said("assistant", _ANSWER), name: _THOUGHT}
        whole = self._rendered([user, thinks], base) or ""
        before, shown, after = whole.rpartition(_USER)[2].partition(_THOUGHT)
        end, answered, _ = after.partition(_ANSWER)
        if shown and answered:
            begin = self._opening(before, base)
            return Thinking(begin, end, field=name) if begin.strip() and end.strip() else None
        # Some show thoughts only while tools run.
        whole = self._rendered([user, *_rounds(1, {**thinks, "content": ""})], base) or ""
        before, shown, after = whole.rpartition(_USER)[2].partition(_THOUGHT)
        begin = self._opening(before, base) if shown else ""
        ends = (mark for start, mark in KNOWN_MARKS if start == begin.strip() and after.lstrip().startswith(mark))
        if (mark := next(ends, "")) == "":
            return None
        return Thinking(begin, after[: after.index(mark) + len(mark)], field=name)

    def _opening(self, before: str, base: Mapping[str, Any]) -> str:
        """What opens the thought, of all that stands before it since the user's text."""
        user, answers = _said("user", _USER), _said("assistant", _ANSWER)
        flags = ({name: value} for name in self._flags for value in (True, False))
        others = [self._tail(arguments) for arguments in (base, *flags)]
        for messages in ([user, answers], [user, answers, _said("user", _NEXT)]):
            plain, answered, _ = (self._rendered(messages, base) or "").rpartition(_USER)[2].partition(_ANSWER)
            others += [plain] if answered else []
        shared = min(filter(None, (_shared(before, other) for other in others)), key=len, default=before)
        if before[len(shared) :].strip():
            return before[len(shared) :]
        tags = [tag for tag in _TAG.finditer(before) if not before[tag.end() :].strip()]
        # Where the thought has nothing before it in a turn that is past, what the prompt ends with opens it.
        return before[tags[-1].start() :] if tags else self._tail(base).removeprefix(before)

    def _pairs(self) -> Iterator[Thinking]:
        """Pairs of marks that may be those of a thought, where the template has no field for it."""
        match getattr(self._tokenizer, "response_template", None):
            case {"fields": dict(regions)}:
                for name in THOUGHT_FIELDS:
                    match regions.get(name):
                        case {"open": str(begin), "close": str(end)} if begin.strip() and end.strip():
                            yield Thinking(begin, end, found="its response template")
        added = {token.content for token in self._tokenizer.added_tokens_decoder.values()}
        for found, has in (("the chat template", self._source.__contains__), ("its vocabulary", added.__contains__)):
            for begin, end in KNOWN_MARKS:
                if has(begin) and has(end):
                    yield Thinking(begin, end, found=found)

    def _in_content(self, given: Thinking) -> Thinking:
        """Marks in the content, with the white space around them that the template writes or that is usual.

        In a field, where the template puts an empty thought before an answer that is past.
        """
        field = next(filter(self._reads, THOUGHT_FIELDS), None)
        past = self._rendered([_said("user", _USER), _said("assistant", _ANSWER), _said("user", _NEXT)], {}) or ""
        if field is not None and past.partition(_ANSWER)[0].endswith(given.open + given.close):
            return replace(given, field=field)
        for arguments in self._bases():
            _, mark, space = self._tail(arguments).rpartition(given.open.strip())
            if mark and not space.strip() and given.open == given.open.strip() and given.close == given.close.strip():
                lines = "\n" in space
                return replace(given, open=mark + space, close=f"\n{given.close}\n\n" if lines else given.close)
        return given

    # What else there is to know.

    def _finished(self, marks: Thinking, base: Mapping[str, Any]) -> tuple[Thinking | None, str]:
        """The whole description, or why the template cannot be used by it."""
        thinking = self._with_switches(marks)
        past = self._past(thinking, base)
        if past is None:
            return None, f"its chat template does not keep a thought between {marks.open_mark} and {marks.close_mark}"
        return replace(thinking, history=past), ""

    def _past(self, thinking: Thinking, base: Mapping[str, Any]) -> Literal["kept", "dropped", "since_user"] | None:
        """What becomes of thoughts that are past; None where a thought does not stand as the description has it."""
        user, next_user = _said("user", _USER), _said("user", _NEXT)
        thought, answer = f"{_THOUGHT} is\nlong", f"{_ANSWER} it\n\nis"
        turn = _turn(thinking, thought, answer)
        expected = thinking.open + thought + thinking.close + answer
        last = self._rendered([user, turn], base) or ""
        after = self._rendered([user, turn, next_user], base) or ""
        if expected in after and self._begins_turn(after, expected, thinking, base):
            return "kept"
        if after and (thought in after or answer not in after):
            return None
        if thinking.field is not None and thought in last and expected.removeprefix(thinking.open) not in last:
            return None
        rounds = self._rendered([user, *_rounds(2, _turn(thinking, thought, ""))], base) or ""
        if rounds.count(thought) == 2:
            return "since_user"
        return "dropped"

    def _begins_turn(self, whole: str, expected: str, thinking: Thinking, base: Mapping[str, Any]) -> bool:
        """Whether the thought begins the model's turn, as the generation prompt has it."""
        header = whole.partition(expected)[0].rpartition(_USER)[2]
        return self._tail(base).startswith(header)

    def _on(self) -> Mapping[str, Any]:
        """The arguments that have the model think, where it is a flag."""
        return {self._flags[0]: True} if self._flags else {}

    def _with_switches(self, thinking: Thinking) -> Thinking:
        switches: dict[str, Mapping[str, Any]] = {}
        for name in self._flags[:1]:
            values = (False, True) if self._state({name: True}, thinking) == "off" else (True, False)
            switches = {"on": {name: values[0]}, "off": {name: values[1]}}
        state = self._state({}, thinking)
        unlike = "off" in switches and self._prompt({}) == self._prompt(switches["off"])
        default: Literal["on", "off"] = "off" if state == "off" or (state == "" and unlike) else "on"
        for base in ({}, switches.get("on", {})) if default == "off" else ({},):
            efforts = {
                value: {**base, name: value}
                for name in self._names
                if name not in self._flags
                for value in self._values(name, base)
            }
            if efforts:
                break
        for value, arguments in efforts.items():
            if value in ("on", "enabled"):
                switches.setdefault("on", arguments)
                continue
            if value in _NO_THOUGHT or self._state(arguments, thinking) == "off":
                switches.setdefault("off", arguments)
            if value not in _NO_THOUGHT:
                switches[value] = arguments
        if default == "on":
            switches.setdefault("on", {})
        elif "on" not in switches and (most := [value for value in ("high", "medium", "low") if value in switches]):
            switches["on"] = switches[most[0]]
        asked = {"": {}, **switches}
        opened = frozenset(name for name, arguments in asked.items() if self._state(arguments, thinking) == "opened")
        return replace(thinking, switches=switches, default=default, opened=opened)

    def _state(self, arguments: Mapping[str, Any], thinking: Thinking) -> Literal["opened", "off", ""]:
        """Whether the generation prompt opens a thought, or has done with it."""
        tail = self._tail(arguments).strip()
        if tail.endswith(thinking.open_mark):
            return "opened"
        return "off" if tail.endswith(thinking.close_mark) or thinking.open_mark in tail else ""

    def _values(self, name: str, base: Mapping[str, Any]) -> list[str]:
        """The words that an argument of the template may be."""
        lines = [line for line in self._source.splitlines() if name in line]
        written = list(dict.fromkeys(word for line in lines for word in _WORD.findall(line)))
        other = self._prompt({**base, name: _OTHER})
        if other is not None and _OTHER in other:
            return list(_USUAL_EFFORTS) if re.search("effort|strength", name) else []
        shown = {word: self._prompt({**base, name: word}) for word in dict.fromkeys((*_EFFORTS, *written))}
        if other is not None and set(shown.values()) == {other}:
            return []
        return [
            word
            for word, prompt in shown.items()
            if prompt is not None and (prompt != other or (word in written and word in _EFFORTS))
        ]


def _same_marks(one: Thinking, other: Thinking) -> bool:
    return (one.open_mark, one.close_mark) == (other.open_mark, other.close_mark)


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _turn(thinking: Thinking, thought: str, answer: str) -> dict[str, Any]:
    """A turn of the assistant with a thought."""
    if thinking.field is None:
        return _said("assistant", thinking.open + thought + thinking.close + answer)
    return {**_said("assistant", answer), thinking.field: thought}


def _rounds(number: int, turn: Mapping[str, Any]) -> Iterator[Message]:
    """A turn of the assistant that calls a tool, and the tool's, over and over."""
    for count in range(number):
        id = f"call{count}abcd"
        call = {"id": id, "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
        yield {**turn, "tool_calls": [call]}
        yield {"role": "tool", "name": "look", "tool_call_id": id, "content": _TOOL}


def _shared(one: str, other: str) -> str:
    """What two texts both begin with, without a tag that ends in only one of them."""
    shared = "".join(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    last = max(shared.rfind(bracket) for bracket in "<[◁")
    return shared if last < 0 or any(bracket in shared[last:] for bracket in ">]▷") else shared[:last]
