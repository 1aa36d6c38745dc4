"""What a request says of how to think: `reasoning_effort`, `chat_template_kwargs`, `thinking_token_budget`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.errors import unknown
from qpdsl.executor.text.thinking import Thinking
from qpdsl.planner.plan.logical import Parameter
from qpdsl.serve.completion_request import CompletionRequest, NoPlace, Refusal

THINK = "think"
THINKING_FIELDS = ("reasoning_effort", "chat_template_kwargs", "thinking_token_budget")
# What a template may call its switch.
_SWITCHES = ("enable_thinking", "thinking")
_NO_EFFORT = "none"


@dataclass(frozen=True, slots=True)
class AskedThinking:
    """What a request says: a switch ("on", "off", an effort; "" where it says none), a bound in tokens, and where."""

    switch: str = ""
    bound: int | None = None
    field: str = ""

    @classmethod
    def of(cls, request: CompletionRequest) -> AskedThinking:
        """Raises Refusal."""
        bound = request.whole("thinking_token_budget", 0)
        asked = request.mapping("chat_template_kwargs")
        for name, value in asked.items():
            if name not in _SWITCHES:
                message = unknown(name, _SWITCHES, "`chat_template_kwargs` has no argument here")
                raise NoPlace(message, "chat_template_kwargs")
            if not isinstance(value, bool):
                raise Refusal(f"`chat_template_kwargs.{name}` must be true or false", "chat_template_kwargs")
        if len(set(asked.values())) > 1:
            names = " and ".join(f"`{name}`" for name in asked)
            raise Refusal(f"{names} of `chat_template_kwargs` are not the same", "chat_template_kwargs")
        effort = request.get("reasoning_effort")
        if effort is not None and (not isinstance(effort, str) or not effort):
            raise Refusal("`reasoning_effort` must be a text", "reasoning_effort")
        effort = "off" if effort == _NO_EFFORT else effort
        switched = next(("on" if value else "off" for value in asked.values()), None)
        if effort is not None and switched is not None and "off" in (effort, switched) and effort != switched:
            message = "`reasoning_effort` and `chat_template_kwargs` do not say the same of thinking"
            raise Refusal(message, "reasoning_effort")
        if bound == 0 and "off" not in (effort, switched):
            if effort or switched:
                other = "reasoning_effort" if effort else "chat_template_kwargs"
                message = f"`thinking_token_budget` 0 and `{other}` do not say the same of thinking"
                raise Refusal(message, "thinking_token_budget")
            return cls("off", None, "thinking_token_budget")
        field = "reasoning_effort" if effort else "chat_template_kwargs" if switched else ""
        return cls(effort or switched or "", bound, field or ("" if bound is None else "thinking_token_budget"))

    def of_model(self, name: str, thinking: Thinking | None) -> AskedThinking:
        """The same for a bare model that thinks so. Raises Refusal where it does not know what is asked for."""
        if thinking is None:
            if self.bound is not None or self.switch not in ("", "off"):
                message = f"`{name}` is not known to think before it answers: leave it out"
                raise NoPlace(message, self.field)
            return AskedThinking()
        if not thinking.knows(self.switch):
            raise Refusal(f"`{name}` has no effort `{self.switch}`: it knows {thinking.efforts}", self.field)
        return self

    def of_program(self, name: str, param: Parameter) -> Mapping[str, Any]:
        """The value of a program's parameter `think`. Raises Refusal where its type has no such value."""
        if not self.field:
            return {}
        words: Mapping[str, Mapping[str, Any]] = {
            "bool": {"on": True, "off": False},
            "int": {"off": 0},
            "text": {self.switch: self.switch},
        }
        if self.bound is not None and self.switch != "off":
            if param.type != "int":
                message = f"`{THINK}` of `{name}` is {param.declared}, not a number of tokens: leave it out"
                raise NoPlace(message, "thinking_token_budget")
            return {THINK: self.bound}
        if self.switch == "on" and param.type == "int":
            # The program has a bound of its own.
            return {}
        if self.switch not in words.get(param.type, {}):
            message = f"`{THINK}` of `{name}` is {param.declared}, and has no value for this: leave it out"
            raise NoPlace(message, self.field)
        return {THINK: words[param.type][self.switch]}
