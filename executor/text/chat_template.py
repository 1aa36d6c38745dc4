"""A tokenizer's chat template, which a model's maker wrote: rendered within bounds, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from qpdsl.executor.foreign.time_limit import TookTooLong, within
from qpdsl.executor.text.text_tokenizer import TextTokenizer

# A message as a template takes it: `role`, `content`, and what else it has.
Message = Mapping[str, Any]
_MAX_KEPT, _MAX_KEPT_CHARACTERS = 1024, 1 << 16
# Seconds that a template may take for a few turns; usual ones take a thousandth.
_RENDERING = 10.0
# Characters that a template may write of its own, beside each message a few times.
_MAX_WRITTEN, _MAX_REPEATS = 1 << 18, 16
Args = ParamSpec("Args")
Result = TypeVar("Result")


class ContextError(Exception):
    """A context that a model's tokenizer cannot take; the message says why."""


def kept_with_its_tokenizer(
    function: Callable[Concatenate[TextTokenizer, Args], Result],
) -> Callable[Concatenate[TextTokenizer, Args], Result]:
    """Remembers results for as long as there is the tokenizer that they are of: some take 200 MB. For any thread.

    Those of very long texts are made anew each time.
    """
    kept: WeakKeyDictionary[TextTokenizer, dict[tuple[object, ...], Result]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(tokenizer: TextTokenizer, /, *args: Args.args, **named: Args.kwargs) -> Result:
        if sum(len(value) for value in args if isinstance(value, str)) > _MAX_KEPT_CHARACTERS:
            # What strangers send is not to fill the memory.
            return function(tokenizer, *args, **named)
        own = kept.setdefault(tokenizer, {})
        try:
            return own[args]
        except KeyError:
            result = function(tokenizer, *args, **named)
        if len(own) >= _MAX_KEPT:
            own.clear()
        own[args] = result
        return result

    return remembered


def render(
    tokenizer: TextTokenizer,
    messages: Sequence[Message],
    *,
    to_go_on: bool = True,
    within_last: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """The chat template around messages, with the generation prompt after them if `to_go_on`.

    With `within_last` it ends where the text of the last message ends, which goes on. `arguments` are the template's
    own. Raises ContextError.
    """
    if not tokenizer.chat_template:
        raise ContextError(
            "its tokenizer has no chat template; use `prompt` instead of `chat` "
            "(docs/start/first_model.md#a-base-model)"
        )

    def rendered() -> str:
        text: str = tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=to_go_on and not within_last,
            continue_final_message=within_last,
            **(arguments or {}),
        )
        return text

    try:
        text = within(_RENDERING, rendered)
    except TookTooLong:
        raise ContextError(f"its chat template takes more than {_RENDERING:g} s for these turns") from None
    except Exception as error:  # a template may raise anything of jinja's
        raise ContextError(f"its chat template does not take these turns: {error}") from error
    given = sum(len(text) for message in messages for text in message.values() if isinstance(text, str))
    # Tools are among the arguments.
    given += len(str(arguments or ""))
    if len(text) > _MAX_WRITTEN + _MAX_REPEATS * given:
        raise ContextError(f"its chat template makes {len(text):,} characters of these turns")
    return text
