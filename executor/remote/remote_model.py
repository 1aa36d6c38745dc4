"""The text model of an address: whose tokens the runtime works on, and what it may take for granted of them.

Where only the server knows the model's tokens, they are the bytes of text, and marks of chat turns: with this tokenizer
all that works on token ids works here too (contexts, `say`, stops, extraction, constraints, thoughts). The engine turns
such ids back into messages, or into plain text; how the model is to think stands before the first turn. A verifier over
a remote model is laid out by its tokenizer here and read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.dialects.dialect import Message, Messages
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, ServerThinking
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.detokenizer import byte_characters
from qpdsl.executor.text.quick_tokenizer import QuickTokenizer, TokenizerOutline
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.text.thinking import Thinking
from qpdsl.executor.text.tool_format import ToolFormat, tool_format
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION, check_width, named
from qpdsl.executor.verifiers.verifier import Verifier
from qpdsl.grammar.model_id import think_of
from qpdsl.grammar.words import VERIFIER_KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# How many ids stand for a byte each; those after them are marks.
BYTES = 256
ROLES = ("system", "user", "assistant")
_MARKS = {role: BYTES + number for number, role in enumerate(ROLES)}
END_OF_TURN = BYTES + len(ROLES)
# What a sample ends with, where the server says that its model ended it.
EOS = END_OF_TURN + 1
# Before what says how to think, before a thought, and between it and the answer.
THINK, THOUGHT, ANSWER = EOS + 1, EOS + 2, EOS + 3
# Before the tools that a model is shown, before each call of one, and before what came of it.
TOOLS, CALL, _MARKS["tool"] = ANSWER + 1, ANSWER + 2, ANSWER + 3
WIDTH = ANSWER + 4
# No text is so long: where only the server knows how much it takes.
UNBOUNDED = 1 << 40
# Bytes of text that a token has at least, on the average of a prompt.
MIN_TOKEN_BYTES = 3
_OTHERS = {"end": END_OF_TURN, "eos": EOS, "think": THINK, "thought": THOUGHT, "answer": ANSWER}
_OTHERS |= {"tools": TOOLS, "call": CALL}
_NAMES = {id: f"<|qpdsl {name}|>" for id, name in sorted((id, name) for name, id in {**_MARKS, **_OTHERS}.items())}
_FIELD = "reasoning_content"
_TEMPLATE = (
    f"{{% if tools %}}{_NAMES[TOOLS]}{{{{ tools | tojson }}}}{{% endif %}}"
    f"{{% if think %}}{_NAMES[THINK]}{{{{ think }}}}{{% endif %}}"
    "{% for message in messages %}"
    + "".join(
        f"{{% {'if' if role == ROLES[0] else 'elif'} message['role'] == '{role}' %}}{_NAMES[id]}"
        for role, id in _MARKS.items()
    )
    + "{% else %}{{ raise_exception('there is no role ' + message['role']) }}{% endif %}"
    + f"{{% if message.{_FIELD} %}}{_NAMES[THOUGHT]}{{{{ message.{_FIELD} }}}}{_NAMES[ANSWER]}{{% endif %}}"
    + "{{ message['content'] }}{% for call in message.tool_calls or [] %}"
    + f'{_NAMES[CALL]}{{"name": {{{{ call.function.name | tojson }}}}, '
    + '"arguments": {{ call.function.arguments | tojson }}}{% endfor %}'
    + f"{_NAMES[END_OF_TURN]}{{% endfor %}}"
    + f"{{% if add_generation_prompt %}}{_NAMES[_MARKS['assistant']]}{{% endif %}}"
)


@cache
def text_tokenizer() -> TextTokenizer:
    """The tokenizer, made in memory. It is one object, so models on servers share what is compiled for it."""
    backend = Tokenizer(models.BPE(vocab=byte_characters(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _NAMES.values()])
    special = {"eos_token": _NAMES[EOS]}

    def original() -> PreTrainedTokenizerFast:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_object=backend, **special)

    return QuickTokenizer(TokenizerOutline("PreTrainedTokenizerFast", _TEMPLATE, special), backend, original)


def is_text(tokenizer: TextTokenizer) -> bool:
    """Whether tokens are bytes of text, as only the server knows the model's own."""
    return tokenizer is text_tokenizer()


def tokens_of(text: str) -> tuple[int, ...]:
    """The tokens of text that a server wrote."""
    return tuple(text.encode("utf-8", "replace"))


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without marks; a character that is cut off becomes a replacement character."""
    return bytes(token for token in tokens if token < BYTES).decode("utf-8", "replace")


def messages_of(prompt: Sequence[int]) -> Messages | None:
    """The chat turns that a prompt stands for; None where it is plain text."""
    if not prompt or prompt[0] < BYTES:
        return None
    roles = {id: role for role, id in _MARKS.items()}
    starts = [place for place, token in enumerate(prompt) if token in roles]
    turns = [
        _message(roles[prompt[start]], prompt[start + 1 : end])
        for start, end in zip(starts, [*starts[1:], len(prompt)], strict=True)
    ]
    before = prompt[: starts[0]]
    place = next((place for place, token in enumerate(before) if token == THINK), len(before))
    tools, think = (text_of(part) for part in (before[:place], before[place:]))
    if turns[-1].role != "assistant" or END_OF_TURN in prompt[starts[-1] :]:
        return Messages(tuple(turns), think=think, tools=tools)
    # A thought that is opened only is the model's to write.
    begun = any(token not in (THOUGHT, END_OF_TURN) for token in prompt[starts[-1] + 1 :])
    return Messages(tuple(turns[:-1]), turns[-1] if begun else None, think, tools)


def _message(role: str, tokens: Sequence[int]) -> Message:
    before, closes, after = tokens, ANSWER in tokens, tokens
    if closes:
        place = tokens.index(ANSWER)
        before, after = tokens[:place], tokens[place + 1 :]
    begins = [*(place for place, token in enumerate(after) if token == CALL), len(after)]
    calls = tuple(text_of(after[start:end]) for start, end in pairwise(begins))
    return Message(role, text_of(after[: begins[0]]), text_of(before) if closes else "", calls)


@dataclass
class RemoteTextModel(TextModel):
    """A text model that a server serves. `padding` is the id of the model's padding token, if it has one.

    `apart`: how it thinks, where its server parts thoughts from answers. `calls`: its server takes tools and gives back
    calls, in whatever format its model writes them. `served_context`: see `context`.
    """

    padding: int | None = None
    apart: ServerThinking | None = None
    calls: bool = False
    served_context: int | None = None

    @property
    def context(self) -> int | None:
        """As its server says."""
        return self.served_context

    @cached_property
    def tool_format(self) -> ToolFormat:
        """Calls stand behind marks for the server's own; else they are JSON, which every server can hold to."""
        return tool_format(self.tokenizer) if self.calls else ToolFormat()

    @cached_property
    def _thinking(self) -> tuple[Thinking | None, str]:
        said = think_of(self.name)
        if not is_text(self.tokenizer) or (said is not None and self.apart is None):
            return super()._thinking
        if said is not None:
            raise ModelError(self.name, "its server parts thoughts from answers itself: remove `think=`")
        if (own := self.apart) is None:
            return None, ""
        return (
            Thinking(
                _NAMES[THOUGHT],
                _NAMES[ANSWER],
                history="kept" if own.returned else "dropped",
                switches={name: {"think": name} for name in own.switches},
                default=own.default,
                field=_FIELD,
                found="its server",
            ),
            "",
        )

    @property
    def most_read(self) -> int:
        """Less, as a server draws a token after what it reads of, and may be shown one to tell of."""
        return self.max_positions - 2

    @cached_property
    def constrainer(self) -> Constrainer:
        """As that of any model, but a record may have white space anywhere: what a server writes is checked by it."""
        return Constrainer(self.tokenizer, self.width, self.eos, any_spacing=True)


def text_model(
    model: str,
    address: Address,
    capabilities: ServerCapabilities,
    location: Path | str | None,
    slow: Callable[[str], None] | None,
) -> RemoteTextModel:
    """The text model of an id. `location` is where its tokenizer lies: None where only the server knows its tokens.

    `slow` is told what takes long for once. Raises ModelError where the tokenizer cannot be loaded, or the server does
    not go on from its token ids.
    """
    notes = tuple(f"the server at {address.url} {note}" for note in capabilities.notes)
    if location is None:
        tokenizer, ends = text_tokenizer(), frozenset({EOS})
        more: dict[str, Any] = {"notes": notes, "own_tokens": False, "apart": capabilities.thinking}
        more["calls"], more["served_context"] = capabilities.calls_in_fields, capabilities.context
        return RemoteTextModel(model, tokenizer, ends, UNBOUNDED, WIDTH, **more)
    # It imports transformers' models.
    from qpdsl.executor.models.load import load_tokens

    tokens = load_tokens(model, location, slow)
    if capabilities.endpoint != "ids":
        raise ModelError(
            model,
            f"the server does not continue from token ids of `{address.tokenizer}`: it accepts none, or has other "
            "tokens; without `tokenizer=` it is sent text",
        )
    positions = capabilities.context or UNBOUNDED
    writes = capabilities.scores is None
    padding = getattr(tokens.config.get_text_config(), "pad_token_id", None)
    return RemoteTextModel(
        model,
        tokens.tokenizer,
        tokens.eos,
        positions,
        tokens.width,
        None,
        writes,
        notes,
        padding=padding,
        served_context=capabilities.context,
    )


def remote_verifier(
    address: Address,
    kind: str,
    tokenizer: TextTokenizer,
    padding: int | None,
    capabilities: ServerCapabilities,
) -> Verifier:
    """The verifier of that kind over a model on a server. `padding` is the id of its padding token, if it has one.

    A kind without a head of its own is read off log-probabilities, any other off what a reward model's server gives.

    Raises ModelError where no kind is named, or the server gives nothing that it could be read off.
    """
    model = str(address)
    if address.tokenizer is None or capabilities.endpoint != "ids":
        raise ModelError(
            model, "as a verifier: it reads token ids, so add its tokenizer, ` tokenizer=FOLDER`, to its name"
        )
    if kind == BY_CONFIGURATION:
        kinds = ", ".join(VERIFIER_KINDS)
        raise ModelError(model, f"as a verifier: name its kind after its id, `kind=…`: {kinds}")
    verifier = named(kind)
    if verifier.head is None and not capabilities.for_engine.features & {"logprobs"}:
        served = ", as it serves a reward model" if capabilities.scores else ""
        raise ModelError(
            model,
            f"as a verifier: kind {kind} needs log-probabilities of given tokens, which the server does not "
            f"return{served}; serve it as a language model, with vLLM or SGLang",
        )
    if verifier.head is not None and capabilities.scores is None:
        raise ModelError(
            model,
            f"as a verifier: kind {kind} has its own head, and the server returns no scores; serve it with "
            f"`vllm serve … --runner pooling`, or with SGLang and `--is-embedding`",
        )
    if verifier.head is None and capabilities.scores is not None:
        raise ModelError(
            model,
            f"as a verifier: the server returns the scores of a reward model, and kind {kind} has no head",
        )
    width = None
    try:
        if verifier.head is not None:
            width = capabilities.score_width or verifier.head_width or 1
            check_width(verifier, width)
        return verifier(tokenizer, width, padding)
    except ContextError as error:
        raise ModelError(model, f"as a verifier: {error}") from error
