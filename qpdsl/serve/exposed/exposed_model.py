"""A bare model by a name of its own: which fields of a request it honours, and what they ask the engine for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.remote.text_tokenizer import is_text
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.request import Constraint, Mask, SamplingParams
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.context import Context, ContextError, encode, encode_pieces
from qpdsl.serve.body_fields import BodyFields
from qpdsl.serve.conversation import read_messages
from qpdsl.serve.exposed.bare_request import BareRequest
from qpdsl.serve.exposed.bare_work import BareWork
from qpdsl.serve.refusal import Refusal
from qpdsl.serve.served_model import CompletionRequest, Endpoint

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
    ),
    "text": (*_HONOURED, "echo", "response_format"),
}
_GUIDED = "say it as vLLM does now: `structured_outputs` with one of `json`, `regex`, `choice`, `grammar`"
_INSTEAD = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GUIDED)
# Fields that name tokens, or tell of single ones.
_OF_TOKENS = (
    *("logprobs", "prompt_logprobs", "logprob_token_ids", "stop_token_ids"),
    *("return_token_ids", "return_tokens_as_token_ids"),
)
_MOST_PROMPTS = 256
# What OpenAI's API takes where a text completion does not say.
_USUAL_TOKENS = 16
# Seeds that nobody chose have so many bits.
_SEED_BITS = 62
_STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


class ExposedModel:
    """A text model that `engine` serves, by the name that clients give. `fingerprint` says what computes its tokens.

    `ignored` are fields of a request that the server was told to drop.
    """

    def __init__(
        self, name: str, model: TextModel, engine: Engine, fingerprint: str, ignored: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self._model = model
        self._engine = engine
        self._fingerprint = fingerprint
        self._ignored = ignored

    @property
    def card(self) -> Mapping[str, Any]:
        """See `ServedModel`. `max_model_len` is what vLLM calls the length of the context."""
        return {"root": self._model.name, "max_model_len": self._model.max_positions}

    def read(self, request: CompletionRequest) -> BareWork:
        """See `ServedModel`."""
        fields = BodyFields(request.body, request.endpoint)
        fields.refuse_others(_HONOURED_BY[request.endpoint], _INSTEAD, self._ignored)
        self._refuse_beyond_server(fields)
        prompts = (self._chat(fields),) if request.endpoint == "chat" else self._prompts(fields)
        sampling = _sampling(fields)
        echo = fields.flag("echo")
        constraint = _constraint(fields)
        logprobs, top = _logprobs(fields, request.endpoint)
        if top and (not sampling.greedy or echo):
            name = "top_logprobs" if request.endpoint == "chat" else "logprobs"
            less = "echoed" if echo else "sampled"
            raise Refusal(
                f"`{name}` 1 takes the likeliest token, which is not known of {less} ones: say 0 for the tokens' own",
                name,
            )
        reads = fields.whole("prompt_logprobs", 0, 0) is not None or (echo and logprobs)
        bound = self._bound(fields, request.endpoint, max(map(len, prompts)), reads or echo)
        named = _ids(fields, "logprob_token_ids", self._model.width)
        if named and (bound != 1 or not logprobs or top or echo):
            raise Refusal(
                "`logprob_token_ids` goes with `logprobs` 0 and one token to sample: `max_tokens` 1",
                "logprob_token_ids",
            )
        seed = fields.whole("seed")
        stop_ids = _ids(fields, "stop_token_ids", self._model.width)
        bare = BareRequest(
            endpoint=request.endpoint,
            prompts=prompts,
            sampling=sampling,
            max_tokens=bound,
            seed=secrets.randbits(_SEED_BITS) if seed is None else seed,
            count=fields.choices(),
            eos=(frozenset() if fields.flag("ignore_eos") else self._model.eos) | frozenset(stop_ids),
            stops=fields.stops(),
            keeps_stop=fields.flag("include_stop_str_in_output"),
            mask=None if constraint is None else self._masks(constraint),
            constraint=constraint,
            logprobs=logprobs,
            greedy_top=top > 0,
            named_ids=named,
            prompt_logprobs=reads,
            echo=echo,
            token_ids=fields.flag("return_token_ids"),
            ids_as_text=fields.flag("return_tokens_as_token_ids"),
            continuous_usage=bool(fields.mapping("stream_options").get("continuous_usage_stats")),
            owner=request.owner,
        )
        return BareWork(self._model, self._engine, bare, self._fingerprint)

    def _refuse_beyond_server(self, fields: BodyFields) -> None:
        """Raises Refusal for what another server does not do for us, where it has the model."""
        if isinstance(self._model, PagedTextModel):
            return
        if fields.flag("ignore_eos"):
            raise Refusal(f"`{self.name}` is on another server, which ends an answer itself", "ignore_eos")
        if is_text(self._model.tokenizer):
            for name in _OF_TOKENS:
                # 0 is not false: it asks for the log-probabilities of the tokens themselves.
                if not any(fields.get(name) is nothing for nothing in (None, False)) and fields.get(name) != []:
                    raise Refusal(self._unknown_tokens(), name, code="unsupported_parameter")

    def _unknown_tokens(self) -> str:
        return f"only the server that has `{self.name}` knows its tokens: say `tokenizer=` with its id at `--expose`"

    async def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of vLLM's `/tokenize`: the token ids of `prompt` or of `messages`. Raises Refusal."""
        if is_text(self._model.tokenizer):
            raise Refusal(self._unknown_tokens(), "model")
        fields = BodyFields(body, "chat" if "messages" in body else "text")
        fields.refuse_others(
            ("add_special_tokens", "return_token_strs", "add_generation_prompt", "continue_final_message"), {}
        )
        if fields.endpoint == "chat":
            tokens = self._chat(fields)
        else:
            prompt = fields.get("prompt")
            if not isinstance(prompt, str):
                raise Refusal("`prompt` is a text", "prompt")
            tokens = self._encoded(prompt, fields)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self._model.max_positions,
            "tokens": list(tokens),
        }
        strings = (
            self._model.tokenizer.convert_ids_to_tokens(list(tokens)) if fields.flag("return_token_strs") else None
        )
        return {**answer, "token_strs": strings}

    async def detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of vLLM's `/detokenize`: the text of `tokens`. Raises Refusal."""
        if is_text(self._model.tokenizer):
            raise Refusal(self._unknown_tokens(), "model")
        tokens = _ids(BodyFields(body, "text"), "tokens", self._model.width)
        return {"prompt": self._model.backend.decode(list(tokens), skip_special_tokens=False)}

    def _chat(self, fields: BodyFields) -> tuple[int, ...]:
        """The token ids of a conversation; with `continue_final_message` up to where its last turn goes on."""
        turns = read_messages(fields.get("messages"))
        goes_on = fields.flag("continue_final_message")
        opens = fields.get("add_generation_prompt")
        if goes_on and opens is not False:
            message = "`continue_final_message` goes with `add_generation_prompt` false: no new turn is begun"
            raise Refusal(message, "add_generation_prompt")
        if goes_on and turns[-1]["role"] != "assistant":
            raise Refusal("`continue_final_message` goes on with a turn of the assistant", "continue_final_message")
        if not goes_on and opens is not None and not fields.flag("add_generation_prompt"):
            raise Refusal("a conversation is answered in a new turn: leave it out", "add_generation_prompt")
        asked = turns[:-1] if goes_on else turns
        try:
            tokens = encode(self._model.tokenizer, Context(tuple((turn["role"], turn["content"]) for turn in asked)))
        except ContextError as error:
            raise Refusal(f"`{self.name}`: {error}", "messages") from error
        return tokens + self._model.encode_after(tokens, turns[-1]["content"]) if goes_on else tokens

    def _prompts(self, fields: BodyFields) -> tuple[tuple[int, ...], ...]:
        """The token ids of each prompt: of one text or several, or of one list of ids or several."""
        given = fields.get("prompt")
        one = isinstance(given, str) or (isinstance(given, list) and given and not isinstance(given[0], str | list))
        prompts = [given] if one else given
        if not isinstance(prompts, list) or not prompts or len(prompts) > _MOST_PROMPTS:
            _refuse_prompt()
        found = []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens = self._encoded(prompt, fields)
            elif is_text(self._model.tokenizer):
                raise Refusal(self._unknown_tokens(), "prompt")
            else:
                tokens = _checked_ids(prompt, "prompt", self._model.width)
            if not tokens:
                raise Refusal("a prompt has one token at least", "prompt")
            found.append(tokens)
        return tuple(found)

    def _encoded(self, text: str, fields: BodyFields) -> tuple[int, ...]:
        """The ids of a prompt: who writes one may write the marks of its template, as every server allows."""
        if fields.get("add_special_tokens") is None or fields.flag("add_special_tokens"):
            return encode(self._model.tokenizer, Context(prompt=((text, True),)))
        return encode_pieces(self._model.tokenizer, [(text, True)])

    def _bound(self, fields: BodyFields, endpoint: Endpoint, longest: int, reads: bool) -> int:
        """The most tokens of a sample: no more than there is room for. Raises Refusal where there is none."""
        most = self._model.max_positions
        if reads and fields.get("max_tokens") == 0:
            if longest > most:
                raise _too_long(most, longest, 0)
            return 0
        asked = fields.bound()
        bound = asked if asked is not None else most - longest if endpoint == "chat" else _USUAL_TOKENS
        if longest >= most:
            raise _too_long(most, longest, 1)
        return min(bound, most - longest)

    def _masks(self, constraint: Constraint) -> Callable[[], Mask]:
        kind, source = constraint.kind, constraint.source
        if kind == "choice":
            kind, source = "grammar", "start: " + " | ".join(json.dumps(text) for text in json.loads(source))
        try:
            return self._model.constrainer.masks(kind, source)
        except ConstraintError as error:
            raise Refusal(f"`{self.name}` cannot be held to this: {error}", "structured_outputs") from error


def _sampling(fields: BodyFields) -> SamplingParams:
    temperature, top_p = fields.number("temperature", 0), fields.number("top_p", 0, 1)
    top_k, min_p = fields.whole("top_k", -1), fields.number("min_p", 0, 1)
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


def _logprobs(fields: BodyFields, endpoint: Endpoint) -> tuple[bool, int]:
    """Whether log-probabilities are asked for, and those of how many of the likeliest tokens."""
    if endpoint == "text":
        count = fields.whole("logprobs", 0)
        name, top = "logprobs", count or 0
        asked = count is not None
    else:
        name, top = "top_logprobs", fields.whole("top_logprobs", 0) or 0
        asked = fields.flag("logprobs")
        if top and not asked:
            raise Refusal("`top_logprobs` goes with `logprobs` true", "top_logprobs")
    if fields.get("logprob_token_ids"):
        # As in vLLM the ids that are named take the place of the likeliest.
        return asked, 0
    if top > 1:
        raise Refusal(f"`{name}` is 0 or 1 here: no more of the likeliest tokens are told", name)
    return asked, top


def _constraint(fields: BodyFields) -> Constraint | None:
    """What `response_format` or `structured_outputs` hold a sample to."""
    asked = fields.get("response_format")
    structured = {name: value for name, value in fields.mapping("structured_outputs").items() if value is not None}
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
        return Constraint("json_schema", value if isinstance(value, str) else json.dumps(value))
    if name == "json_object":
        return Constraint("json_schema", '{"type": "object"}') if value else None
    if name == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
            raise Refusal("`choice` is a list of texts", "structured_outputs")
        return Constraint("choice", json.dumps(value))
    if not isinstance(value, str):
        raise Refusal(f"`{name}` is a text", "structured_outputs")
    return Constraint("regex" if name == "regex" else "grammar", value)


def _format(asked: Any) -> Constraint | None:
    if asked is None:
        return None
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_schema", '{"type": "object"}')
    described = asked.get("json_schema") if kind == "json_schema" else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        message = '`response_format` is {"type": "text"}, {"type": "json_object"}, or of the type `json_schema` with '
        raise Refusal(message + '{"json_schema": {"name": …, "schema": {…}}}', "response_format")
    return Constraint("json_schema", json.dumps(schema))


def _ids(fields: BodyFields, name: str, width: int) -> tuple[int, ...]:
    value = fields.get(name)
    return () if value is None else _checked_ids(value, name, width)


def _checked_ids(value: Any, name: str, width: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(id, int) and not isinstance(id, bool) for id in value):
        raise Refusal(f"`{name}` has token ids, which are whole numbers", name)
    for id in value:
        if not 0 <= id < width:
            raise Refusal(f"`{name}` has the id {id}, which is none of the {width:,} of the vocabulary", name)
    return tuple(value)


def _refuse_prompt() -> NoReturn:
    message = f"`prompt` is a text, a list of token ids, or a list of up to {_MOST_PROMPTS} of these"
    raise Refusal(message, "prompt")


def _too_long(most: int, prompt: int, bound: int) -> Refusal:
    # Clients look for these words.
    message = (
        f"this model's maximum context length is {most} tokens, and the request takes {prompt + bound}: "
        f"{prompt} of the prompt and {bound} to come"
    )
    return Refusal(message, "messages", code="context_length_exceeded")
