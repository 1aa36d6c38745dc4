"""A model itself, by a name of its own: which fields of a request it honours, and what they ask the engine for."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.remote_model import is_text
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.request import Mask, SampleConstraint, SamplingParams
from qpdsl.executor.runtime.generate.turn import answered_at_once
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.context import Context, Turn, encode, encode_pieces, plain_turns
from qpdsl.grammar.model_id import is_remote
from qpdsl.serve.completion_request import BOUNDS, CompletionRequest, Endpoint, NoPlace, Refusal
from qpdsl.serve.constraint_bounds import check_choices, check_schema, check_text
from qpdsl.serve.conversation import Turn as ReadTurn
from qpdsl.serve.conversation import read_messages
from qpdsl.serve.passthrough_request import PassthroughRequest
from qpdsl.serve.response_format import read_response_format
from qpdsl.serve.thinking_fields import THINKING_FIELDS, AskedThinking
from qpdsl.serve.tool_fields import TOOL_FIELDS, AskedTools
from qpdsl.serve.written_calls import WrittenCalls

_HONOURED = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stop_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "structured_outputs", "prompt_logprobs"),
    *(
        "return_token_ids",
        "return_tokens_as_token_ids",
        "add_special_tokens",
        "logprobs",
        "logprob_token_ids",
        "max_tokens",
    ),
)
_HONOURED_BY: Mapping[Endpoint, tuple[str, ...]] = {
    "chat": (
        *_HONOURED,
        *("max_completion_tokens", "top_logprobs", "response_format", "add_generation_prompt"),
        "continue_final_message",
        *THINKING_FIELDS,
    ),
    "text": (*_HONOURED, "echo", "response_format"),
}
_GUIDED = "use `structured_outputs`, as in vLLM now, with one of `json`, `regex`, `choice`, `grammar`"
_INSTEAD = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GUIDED)
# Fields that name tokens, or tell of single ones.
_OF_TOKENS = (
    *("logprobs", "prompt_logprobs", "logprob_token_ids", "stop_token_ids"),
    *("return_token_ids", "return_tokens_as_token_ids"),
)
_MAX_PROMPTS = 256
# What OpenAI's API takes where a text completion does not say.
_USUAL_TOKENS = 16
# Seeds that nobody chose have so many bits.
_SEED_BITS = 62
_STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


class PassthroughModel:
    """A text model that `engine` serves, by the name that clients give. `fingerprint` says what computes its tokens."""

    def __init__(self, name: str, model: TextModel, engine: Engine, fingerprint: str) -> None:
        self.name = name
        self._model = model
        self._engine = engine
        self._fingerprint = fingerprint

    @property
    def card(self) -> Mapping[str, Any]:
        """See `ServedModel`. `max_model_len` is what vLLM calls the length of the context."""
        context = self._model.context
        return {"root": self._model.name} | ({} if context is None else {"max_model_len": context})

    def read(self, request: CompletionRequest) -> PassthroughRequest:
        """See `ServedModel`."""
        request.refuse_others((*_HONOURED_BY[request.endpoint], *self._tool_fields(request)), _INSTEAD)
        self._refuse_beyond_server(request)
        asked, tools, place = AskedThinking(), AskedTools(), None
        if request.endpoint == "chat":
            asked = AskedThinking.of(request).of_model(self.name, self._model.thinking)
            tools = self._tools(request)
            place = self._place(request, asked)
            prompts: tuple[tuple[int, ...], ...] = (self._chat(request, asked.switch, tools.shown),)
        else:
            prompts = self._prompts(request)
        sampling = _sampling(request)
        echo = request.flag("echo")
        constraint = _constraint(request)
        calls = WrittenCalls(self._model, tools) if tools.callable else None
        if calls is not None and constraint is not None:
            message = "`tools` and a format of the answer both say what the output is"
            raise Refusal(f"{message}: send one of them, or `tool_choice` `none`", "tools")
        constraint = constraint if calls is None else calls.constraint
        if constraint is not None and place == "opening" and self._model.thought_marks is not None:
            # The answer could not begin by itself, so the model is made to begin its thought.
            prompts, place = (prompts[0] + self._model.thought_marks.opening,), "thought"
        logprobs, top = _logprobs(request)
        if top and (not sampling.greedy or echo):
            name = "top_logprobs" if request.endpoint == "chat" else "logprobs"
            less = "echoed" if echo else "sampled"
            raise Refusal(
                f"`{name}` 1 takes the likeliest token, which is not known of {less} ones: say 0 for the tokens' own",
                name,
            )
        reads = request.whole("prompt_logprobs", 0, 0) is not None or (echo and logprobs)
        bound = self._bound(request, max(map(len, prompts)), reads or echo)
        named = _ids(request, "logprob_token_ids", self._model.width)
        if named and (bound != 1 or not logprobs or top or echo):
            raise Refusal(
                "`logprob_token_ids` goes with `logprobs` 0 and one token to sample: `max_tokens` 1",
                "logprob_token_ids",
            )
        seed = request.whole("seed")
        stop_ids = _ids(request, "stop_token_ids", self._model.width)
        return PassthroughRequest(
            model=self._model,
            engine=self._engine,
            fingerprint=self._fingerprint,
            endpoint=request.endpoint,
            prompts=prompts,
            sampling=sampling,
            max_tokens=bound,
            seed=secrets.randbits(_SEED_BITS) if seed is None else seed,
            count=request.choices(),
            eos=(frozenset() if request.flag("ignore_eos") else self._model.eos) | frozenset(stop_ids),
            stops=request.stops(),
            keeps_stop=request.flag("include_stop_str_in_output"),
            mask=None if constraint is None else self._masks(constraint, request.client.owner, calls is not None),
            constraint=constraint,
            calls=calls,
            logprobs=logprobs,
            greedy_top=top > 0,
            named_ids=named,
            prompt_logprobs=reads,
            echo=echo,
            token_ids=request.flag("return_token_ids"),
            ids_as_text=request.flag("return_tokens_as_token_ids"),
            continuous_usage=bool(request.mapping("stream_options").get("continuous_usage_stats")),
            place=place,
            thought_bound=asked.bound,
            client=request.client,
        )

    def _place(self, request: CompletionRequest, asked: AskedThinking) -> Literal["opening", "thought"] | None:
        """Where a sample begins whose model thinks first; None where none does."""
        thinking, switch = self._model.thinking, asked.switch
        if thinking is None or switch == "off" or request.flag("continue_final_message"):
            return None
        if not switch and thinking.default == "off":
            return None
        return "thought" if (switch if switch in thinking.switches else "") in thinking.opened else "opening"

    def _tool_fields(self, request: CompletionRequest) -> tuple[str, ...]:
        """The fields for tools that are honoured: another server says of none how its model writes calls."""
        own = not is_remote(self._model.name) and request.endpoint == "chat"
        return TOOL_FIELDS if own else ()

    def _tools(self, request: CompletionRequest) -> AskedTools:
        return AskedTools.of(request) if self._tool_fields(request) else AskedTools()

    def _refuse_beyond_server(self, request: CompletionRequest) -> None:
        """Raises Refusal for what another server does not do for us, where it has the model."""
        if not is_remote(self._model.name):
            return
        if request.flag("ignore_eos"):
            raise NoPlace(f"`{self.name}` is on another server, which ends an answer itself", "ignore_eos")
        if is_text(self._model.tokenizer):
            for name in _OF_TOKENS:
                # 0 is not false: it asks for the log-probabilities of the tokens themselves.
                if not any(request.get(name) is nothing for nothing in (None, False)) and request.get(name) != []:
                    raise NoPlace(self._unknown_tokens(), name)

    def _unknown_tokens(self) -> str:
        return f"only the server that has `{self.name}` knows its tokens: add `tokenizer=` to its id at `--expose`"

    def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of vLLM's `/tokenize`: the token ids of `prompt` or of `messages`. Raises Refusal."""
        if is_text(self._model.tokenizer):
            raise Refusal(self._unknown_tokens(), "model")
        request = CompletionRequest("chat" if "messages" in body else "text", body)
        _refuse(request, "stream")
        request.refuse_others(
            (
                *("add_special_tokens", "return_token_strs", "add_generation_prompt", "continue_final_message"),
                "chat_template_kwargs",
                *self._tool_fields(request),
            ),
            {},
        )
        if request.endpoint == "chat":
            asked = AskedThinking.of(request).of_model(self.name, self._model.thinking)
            tokens = self._chat(request, asked.switch, self._tools(request).shown)
        else:
            prompt = request.get("prompt")
            if not isinstance(prompt, str):
                raise Refusal("`prompt` is a text", "prompt")
            tokens = self._encoded(prompt, request)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self._model.max_positions,
            "tokens": list(tokens),
        }
        strings = (
            self._model.tokenizer.convert_ids_to_tokens(list(tokens)) if request.flag("return_token_strs") else None
        )
        return {**answer, "token_strs": strings}

    def detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of vLLM's `/detokenize`: the text of `tokens`. Raises Refusal."""
        if is_text(self._model.tokenizer):
            raise Refusal(self._unknown_tokens(), "model")
        request = CompletionRequest("text", body)
        _refuse(request, "prompt", "stream")
        request.refuse_others(("tokens",), {})
        tokens = _ids(request, "tokens", self._model.width)
        if len(tokens) > self._model.max_positions:
            raise Refusal(f"`tokens` has {len(tokens):,} ids, and a context {self._model.max_positions:,}", "tokens")
        return {"prompt": self._model.backend.decode(list(tokens), skip_special_tokens=False)}

    def _chat(self, request: CompletionRequest, switch: str, tools: str) -> tuple[int, ...]:
        """The token ids of a conversation; with `continue_final_message` up to where its last turn goes on.

        `switch` says how the model is to think; it is shown `tools`.
        """
        turns = read_messages(request.get("messages"), tools=bool(self._tool_fields(request)))
        goes_on = request.flag("continue_final_message")
        opens = request.get("add_generation_prompt")
        if goes_on and opens is not False:
            message = "`continue_final_message` goes with `add_generation_prompt` false: no new turn is begun"
            raise Refusal(message, "add_generation_prompt")
        if goes_on and turns[-1]["role"] != "assistant":
            raise Refusal("`continue_final_message` goes on with a turn of the assistant", "continue_final_message")
        if not goes_on and opens is not None and not request.flag("add_generation_prompt"):
            raise Refusal("a conversation is answered in a new turn: leave it out", "add_generation_prompt")
        said = [_turn(turn) for turn in turns]
        characters = sum(len(text) for turn in said for text in turn)
        self._check_length(characters + len(tools), "messages")
        if not tools and any(turn.calls or turn.role == "tool" for turn in said) and self._model.tool_format.is_plain:
            # The template leaves out what it does not know.
            said = list(plain_turns(said, tools, self._model.tool_format))
        context = Context(tuple(said), tools=tools)
        try:
            if switch == "off" and not goes_on:
                return answered_at_once(self._model, context)
            return encode(self._model.tokenizer, context, self._model.thinking, switch, within_last=goes_on)
        except ContextError as error:
            raise Refusal(f"`{self.name}`: {error}", "messages") from error

    def _prompts(self, request: CompletionRequest) -> tuple[tuple[int, ...], ...]:
        """The token ids of each prompt: of one text or several, or of one list of ids or several."""
        given = request.get("prompt")
        one = isinstance(given, str) or (isinstance(given, list) and given and not isinstance(given[0], str | list))
        prompts = [given] if one else given
        if not isinstance(prompts, list) or not prompts or len(prompts) > _MAX_PROMPTS:
            _refuse_prompt()
        found = []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens = self._encoded(prompt, request)
            elif is_text(self._model.tokenizer):
                raise Refusal(self._unknown_tokens(), "prompt")
            else:
                tokens = _checked_ids(prompt, "prompt", self._model.width)
            if not tokens:
                raise Refusal("a prompt has one token at least", "prompt")
            found.append(tokens)
        return tuple(found)

    def _encoded(self, text: str, request: CompletionRequest) -> tuple[int, ...]:
        """The ids of a prompt: who writes one may write the marks of its template, as every server allows."""
        self._check_length(len(text), "prompt")
        if request.get("add_special_tokens") is None or request.flag("add_special_tokens"):
            return encode(self._model.tokenizer, Context(prompt=((text, True),)))
        return encode_pieces(self._model.tokenizer, [(text, True)])

    def _check_length(self, characters: int, field: str) -> None:
        """Raises Refusal for a text that is too long whatever its tokens are, before any time is spent on it."""
        if characters > self._model.most_characters:
            raise too_many_characters(self._model.max_positions, characters, field)

    def _bound(self, request: CompletionRequest, longest: int, reads: bool) -> int:
        """The most tokens of a sample: no more than there is room for. Raises Refusal where there is none."""
        most = self._model.max_positions
        if reads and request.get("max_tokens") == 0:
            if longest > most:
                raise _too_long(most, longest, 0)
            return 0
        asked = request.bound()
        bound = asked if asked is not None else most - longest if request.endpoint == "chat" else _USUAL_TOKENS
        if longest >= most:
            raise _too_long(most, longest, 1)
        return min(bound, most - longest)

    def _masks(self, constraint: SampleConstraint, owner: str, calls: bool) -> Callable[[], Mask]:
        kind, source = constraint.kind, constraint.source
        if kind == "choice":
            kind, source = "grammar", "start: " + " | ".join(json.dumps(text) for text in json.loads(source))
        try:
            return self._model.constrainer.masks(kind, source, bounded=True, owner=owner)
        except ConstraintError as error:
            what, field = ("calls of these tools", "tools") if calls else ("this", "structured_outputs")
            raise Refusal(f"`{self.name}` cannot be held to {what}: {error}", field) from error


def _turn(turn: ReadTurn) -> Turn:
    """A turn of a request, with its fields for tools."""
    calls = {name: turn[name] for name in ("tool_calls", "tool_call_id", "name") if name in turn}
    spelt = json.dumps(calls, ensure_ascii=False) if calls else ""
    return Turn(turn["role"], turn["content"], turn.get("reasoning_content", ""), spelt)


def _sampling(request: CompletionRequest) -> SamplingParams:
    temperature, top_p, min_p = (request.number(name, *BOUNDS[name]) for name in ("temperature", "top_p", "min_p"))
    top_k = request.whole("top_k", -1)
    if top_p == 0:
        raise Refusal("`top_p` is above 0", "top_p")
    if min_p == 1:
        raise Refusal("`min_p` is below 1", "min_p")
    return SamplingParams(
        1.0 if temperature is None else temperature,
        top_k if top_k is not None and top_k > 0 else None,
        None if top_p == 1 else top_p,
        min_p or None,
    )


def _logprobs(request: CompletionRequest) -> tuple[bool, int]:
    """Whether log-probabilities are asked for, and those of how many of the likeliest tokens."""
    if request.endpoint == "text":
        count = request.whole("logprobs", 0)
        name, top = "logprobs", count or 0
        asked = count is not None
    else:
        name, top = "top_logprobs", request.whole("top_logprobs", 0) or 0
        asked = request.flag("logprobs")
        if top and not asked:
            raise Refusal("`top_logprobs` goes with `logprobs` true", "top_logprobs")
    if request.get("logprob_token_ids"):
        # As in vLLM the ids that are named take the place of the likeliest.
        return asked, 0
    if top > 1:
        raise NoPlace(f"`{name}` is 0 or 1 here: no more of the likeliest tokens are told", name)
    return asked, top


def _constraint(request: CompletionRequest) -> SampleConstraint | None:
    """What `response_format` or `structured_outputs` hold a sample to."""
    asked = request.get("response_format")
    structured = {name: value for name, value in request.mapping("structured_outputs").items() if value is not None}
    # Records are written with no more white space than there has to be anyway.
    structured.pop("disable_any_whitespace", None)
    formed = _format(asked)
    if not structured:
        return formed
    if formed is not None:
        raise Refusal("`response_format` and `structured_outputs` both say what the output is", "structured_outputs")
    if len(structured) != 1 or next(iter(structured)) not in _STRUCTURES:
        names = ", ".join(f"`{name}`" for name in _STRUCTURES)
        raise Refusal(f"`structured_outputs` has one of {names}", "structured_outputs")
    ((name, value),) = structured.items()
    if name == "json":
        return _schema_constraint(value, "structured_outputs")
    if name == "json_object":
        return SampleConstraint("json_schema", '{"type": "object"}') if value else None
    if name == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
            raise Refusal("`choice` is a list of texts", "structured_outputs")
        check_choices(value, "structured_outputs")
        return SampleConstraint("choice", json.dumps(value))
    if not isinstance(value, str):
        raise Refusal(f"`{name}` is a text", "structured_outputs")
    check_text(f"`{name}`", len(value), "structured_outputs")
    return SampleConstraint("regex" if name == "regex" else "grammar", value)


def _format(asked: Any) -> SampleConstraint | None:
    kind, schema = read_response_format(asked)
    if kind == "text":
        return None
    if kind == "json_object":
        return SampleConstraint("json_schema", '{"type": "object"}')
    if isinstance(schema, bool):
        raise Refusal("the schema of `response_format` is an object", "response_format")
    return _schema_constraint(schema, "response_format")


def _schema_constraint(schema: Any, field: str) -> SampleConstraint:
    """What holds a sample to a JSON Schema, which is a JSON value or a text of one."""
    source = schema if isinstance(schema, str) else json.dumps(schema)
    check_text("the JSON Schema", len(source), field)
    # What is wrong with it otherwise is said where it is compiled.
    with contextlib.suppress(ValueError):
        check_schema(json.loads(source), field)
    return SampleConstraint("json_schema", source)


def _ids(request: CompletionRequest, name: str, width: int) -> tuple[int, ...]:
    value = request.get(name)
    return () if value is None else _checked_ids(value, name, width)


def _checked_ids(value: Any, name: str, width: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(id, int) and not isinstance(id, bool) for id in value):
        raise Refusal(f"`{name}` has token ids, which are whole numbers", name)
    for id in value:
        if not 0 <= id < width:
            raise Refusal(f"`{name}` has the id {id}, which is not in the vocabulary of {width:,} tokens", name)
    return tuple(value)


def _refuse(request: CompletionRequest, *names: str) -> None:
    """Raises Refusal for fields that answers have, and the tokens of a text have not."""
    for name in names:
        if request.get(name):
            raise Refusal(f"`{name}` is not supported here: leave it out", name, code="unsupported_parameter")


def _refuse_prompt() -> NoReturn:
    message = f"`prompt` is a text, a list of token ids, or a list of up to {_MAX_PROMPTS} of these"
    raise Refusal(message, "prompt")


def too_many_characters(most: int, characters: int, field: str) -> Refusal:
    """Of a text that has more characters than the tokens of any context, which has `most`."""
    message = f"this model's maximum context length is {most} tokens, and a text of {characters:,} characters has more"
    return Refusal(message, field, code="context_length_exceeded")


def _too_long(most: int, prompt: int, bound: int) -> Refusal:
    # Clients look for these words.
    message = (
        f"this model's maximum context length is {most} tokens, and the request takes {prompt + bound}: "
        f"{prompt} of the prompt and {bound} to come"
    )
    return Refusal(message, "messages", code="context_length_exceeded")
