"""The call that a model's answer ends in, told from the text before it, also while the answer grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import SampleConstraint
from qpdsl.executor.text.detokenizer import Tokens
from qpdsl.planner.names.tool_calls import call_schema, held_to_calls
from qpdsl.serve.streamed_text import held_back
from qpdsl.serve.tool_fields import AskedTools, call_of


@dataclass(frozen=True)
class WrittenCalls:
    """How a model calls the tools of a request, in the format of its chat template."""

    model: TextModel
    asked: AskedTools

    @cached_property
    def constraint(self) -> SampleConstraint:
        """What answers are held to."""
        form, tools, or_text = self.model.tool_format, self.asked.callable, self.asked.or_text
        if form.is_plain:
            schema = call_schema(json.loads(tools), self.asked.most if self._several else None)
            return SampleConstraint(*held_to_calls(schema, or_text=or_text))
        grammar = form.grammar(tools, self.model.tokenizer, or_text=or_text, most=self.asked.most)
        return SampleConstraint("grammar", grammar)

    @property
    def _several(self) -> bool:
        return self.asked.most > 1

    def read(self, text: str, tokens: Tokens, origin: str) -> tuple[str, tuple[Mapping[str, Any], ...]] | None:
        """The text before the calls that an answer ends in, and these; None where it is all text.

        `tokens` are those of the answer. `origin`: see `call_of`.
        """
        while tokens and tokens[-1] in self.model.eos:
            tokens = tokens[:-1]
        marked = partial(self.model.marked_detokenizer.text, tokens)
        parted = self.model.tool_format.parted(text, self.asked.callable, marked, several=self._several)
        if parted is None:
            return None
        try:
            spelt = json.loads(parted[1])
            listed = spelt if self._several else [spelt]
            made = tuple(
                call_of(call["name"], call["arguments"], f"{origin} {number}" if number else origin)
                for number, call in enumerate(listed)
                if call["name"] in list(self.asked.names)
            )
        except (ValueError, RecursionError, KeyError, TypeError):
            # It was cut off, has a number that JSON cannot have, or is a text that looks like one.
            return None
        if len(made) < len(listed):
            return None
        before = parted[0].strip()
        return text[: text.find(before) + len(before)] if before else "", made

    def sure(self, text: str) -> int:
        """How many characters of a growing answer are no part of a call, whatever comes."""
        if not self.asked.or_text:
            return 0
        mark = self.model.tool_format.mark
        if mark:
            at = text.find(mark)
            return len(text[: at if at >= 0 else len(text) - held_back(text, (mark,))].rstrip())
        said = text.lstrip()
        begun = any(said.startswith(start) or start.startswith(said) for start in self._starts)
        return 0 if begun else len(text)

    def begins_with(self, token: int) -> bool:
        """Whether a call begins with this token, which is no part of any text."""
        return token == self._special

    @cached_property
    def _starts(self) -> list[str]:
        return self.model.tool_format.starts(sorted(self.asked.names), several=self._several)

    @cached_property
    def _special(self) -> int | None:
        mark, added = self.model.tool_format.mark, self.model.tokenizer.added_tokens_decoder
        own = (id for id, token in added.items() if token.special and mark.startswith(token.content))
        return next(own, None) if mark else None
