"""A tokenizer without transformers, which takes longer to import than many a model to load.

It is one of transformers' own, as that was found when its model was loaded for the first time. There, both render the
same turns, and have the same backend, which all encoding and decoding is left to. What a template refuses here, and
what is asked of it seldom, it has the original do, which is made then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import AddedToken, Tokenizer

from qpdsl.executor.text.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from jinja2 import Template
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, Any]
# Names of a thought in a message; of several the first counts.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
# Shows what a template is given.
_SHOWN = "{{ messages | tojson }}"
# What a template itself raises.
_REFUSAL = "TemplateError"
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
_MAX_TEMPLATES = 64
# What some tokenizers leave out spaces of when they decode.
_TEXT = "Is it 2 , 3 ? No ! I 'm sure , it 's 5 ; do n't we 've ( they 're ) a word . \n\n  Zoë 🙂 '"
_TURNS: Sequence[Message] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " How many are 2 + 3?\n"},
    {"role": "assistant", "content": "They are 5.\n\n"},
    {"role": "user", "content": "And <b>1</b> more?"},
)
_TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
_THINKING: Sequence[Message] = [{"role": "assistant", "content": "5", name: "2 + 3"} for name in _THOUGHTS]
# Turns that both render, and how.
_TRIALS: Sequence[tuple[Sequence[Message], Mapping[str, Any]]] = (
    (_TURNS[1:2], {}),
    (_TURNS, {}),
    (_TURNS[1:], {"tools": [_TOOL]}),
    (_TURNS[:3], {"continue_final_message": True}),
    (_TURNS[1:3], {"enable_thinking": False}),
)


@dataclass(frozen=True, slots=True)
class TokenizerOutline:
    """What is known of a tokenizer of transformers but its backend.

    kind:            the name of its class
    is_quick:        whether a `QuickTokenizer` over the backend that its file holds gives the same
    copies_thoughts: whether templates are given a thought by all its names, as in some releases of transformers
    """

    kind: str
    chat_template: str | None = None
    special_tokens: Mapping[str, str] | None = None
    is_quick: bool = False
    copies_thoughts: bool = True

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, backend: Tokenizer | None) -> TokenizerOutline:
        """That of a tokenizer whose file holds `backend`."""
        kind, template = kind_of(tokenizer), tokenizer.chat_template
        # What most tokenizers do not have, and is asked for by name.
        other = getattr(tokenizer, "response_template", None)
        if backend is None or not isinstance(template, str | None) or other is not None:
            return cls(kind)
        for copies in (True, False):
            outline = cls(kind, template, dict(tokenizer.special_tokens_map), is_quick=True, copies_thoughts=copies)
            if _is_same(QuickTokenizer(outline, backend, lambda: tokenizer), tokenizer):
                return outline
        return cls(kind)


class QuickTokenizer:
    """The tokenizer of an outline over its backend; `original` makes that of transformers."""

    def __init__(self, outline: TokenizerOutline, backend: Tokenizer, original: Callable[[], TextTokenizer]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.chat_template = outline.chat_template
        self.special_tokens_map: Mapping[str, str] = outline.special_tokens or {}
        self.kind = outline.kind
        self._copies_thoughts = outline.copies_thoughts
        self._make = original

    @cached_property
    def _original(self) -> TextTokenizer:
        made = self._make()
        made.chat_template = self.chat_template
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        name = self.special_tokens_map.get("eos_token")
        return None if name is None else self.convert_tokens_to_ids(name)

    @property
    def response_template(self) -> None:
        """It has none."""

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: id for id, token in sorted(self.added_tokens_decoder.items(), key=lambda item: item[0])}

    def encode(self, text: str, *, add_special_tokens: bool = True, **unusual: Any) -> list[int]:
        if unusual:
            ids: list[int] = self._original.encode(text, add_special_tokens=add_special_tokens, **unusual)
            return ids
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: Literal[False] | None = None,
    ) -> str:
        return str(self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        return [self.backend_tokenizer.id_to_token(id) for id in ids]

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        id = self.backend_tokenizer.token_to_id(tokens)
        return self._original.convert_tokens_to_ids(tokens) if id is None else id

    def apply_chat_template(self, conversation: Sequence[Message], **how: Any) -> Any:
        """As transformers' method of that name, which renders what is unusual."""
        try:
            rendered = self.rendered(conversation, **how)
        except Exception as error:  # whatever the template provokes; the original says what it was
            if type(error).__name__ == _REFUSAL:
                raise
            rendered = None
        return self._original.apply_chat_template(list(conversation), **how) if rendered is None else rendered

    def rendered(
        self,
        conversation: Sequence[Message],
        *,
        tokenize: bool,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **arguments: Any,
    ) -> str | None:
        """The turns as text, where they are plain; else None. Raises whatever the template provokes."""
        template = self.chat_template if chat_template is None else chat_template
        if tokenize or template is None or any(None in message.values() for message in conversation):
            return None
        messages = [self._shown(message) for message in conversation]
        said = ""
        if continue_final_message:
            said = messages[-1]["content"]
            if not isinstance(said, str) or "content" not in template:
                return None
            messages[-1]["content"] = said + _CONTINUED
        given = {"tools": None, "documents": None, **self.special_tokens_map, **arguments}
        text = _compiled(template).render(messages=messages, add_generation_prompt=add_generation_prompt, **given)
        if not continue_final_message:
            return text
        end = text.rfind(_CONTINUED.strip())
        if end < 0 or said.strip() not in text:
            return None
        return text[:end] if text.startswith(_CONTINUED, end) else text[:end].rstrip()

    def _shown(self, message: Message) -> dict[str, Any]:
        """A message as a template is given it."""
        thought = next((message[name] for name in _THOUGHTS if name in message), None)
        if thought is None or not self._copies_thoughts:
            return dict(message)
        return {"thinking": thought, **message, "reasoning_content": thought}


def kind_of(tokenizer: TextTokenizer) -> str:
    """The name of its class in transformers."""
    return tokenizer.kind if isinstance(tokenizer, QuickTokenizer) else type(tokenizer).__name__


def _is_same(quick: QuickTokenizer, tokenizer: PreTrainedTokenizerFast) -> bool:
    own: Tokenizer = tokenizer.backend_tokenizer
    # As each call of the original has it.
    own.no_truncation()
    own.no_padding()
    if quick.backend_tokenizer.to_str() != own.to_str():
        return False
    for special in (True, False):
        ids = quick.encode(_TEXT, add_special_tokens=special)
        if ids != tokenizer.encode(_TEXT, add_special_tokens=special) or quick.decode(ids) != tokenizer.decode(ids):
            return False
    if not _renders_same(quick, tokenizer, _THINKING, {"chat_template": _SHOWN}):
        return False
    return quick.chat_template is None or all(_renders_same(quick, tokenizer, *trial) for trial in _TRIALS)


def _renders_same(
    quick: QuickTokenizer, tokenizer: PreTrainedTokenizerFast, turns: Sequence[Message], how: Mapping[str, Any]
) -> bool:
    given = {"tokenize": False, "add_generation_prompt": "continue_final_message" not in how, **how}
    try:
        rendered = quick.rendered(turns, **given)
    except Exception:  # whatever the template provokes; the original is asked then
        return True
    try:
        return rendered is None or rendered == tokenizer.apply_chat_template(list(turns), **given)
    except Exception:  # here nothing was wrong with it
        return False


@lru_cache(maxsize=_MAX_TEMPLATES)
def _compiled(template: str) -> Template:
    """A chat template in the environment that transformers gives it."""
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """Tags around what the model wrote, which has a scope of its own."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    class Names(Namespace):
        """A namespace without the names by which Python's own attributes are reached."""

        def __init__(self, /, *args: Any, **named: Any) -> None:
            super().__init__()
            for name, value in dict(*args, **named).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise SecurityError(name)
            super().__setitem__(name, value)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    # A function, of which no attribute leads anywhere.
    environment.globals["dict"] = lambda *args, **named: dict(*args, **named)
    environment.globals["namespace"] = Names
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment.from_string(template)
