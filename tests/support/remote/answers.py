"""What a kind of server makes of a request: what it draws, and how it writes answers, streams and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from qpdsl.executor.text.constraint import ConstraintError
from tests.support.remote.language import Drawing, Floats, Language, Token, Writes
from tests.support.remote.traits import STANDARD, Heed, Traits

Json = dict[str, Any]
Endpoint = Literal["completions", "chat", "completion", "generate"]
_MIN_LOGPROB = -9999.0
_END = "<|end|>"
_OBJECT = '{"type": "object"}'


class Refused(Exception):
    """A request that the server does not take: a status and words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Thinks:
    """That a thought comes first: `most` tokens of it at most, and `effort` times as long as usual."""

    most: int | None = None
    effort: float = 1.0


@dataclass(frozen=True)
class Job:
    """A request understood: what to draw after which ids, and what to tell of it. `drawings` has one a choice.

    `rest`: it goes on with an answer, of a model that would think.
    """

    endpoint: Endpoint
    model: str
    prompt: tuple[int, ...]
    drawings: tuple[Drawing, ...]
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    stream: bool = False
    tells_usage: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    of_ids: tuple[int, ...] = ()
    echo: str | None = None
    ids_as_tokens: bool = False
    returns_ids: bool = False
    thinks: Thinks | None = None
    rest: bool = False


@dataclass
class Choice:
    """One sample as far as it has come. `text` is what may be told already, `end` why it ended.

    `thought` is what stands before the text, in the first `thinking` of its tokens; `fresh` is new of it.
    """

    number: int
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    end: Literal["eos", "word", "limit"] | None = None
    word: str | None = None
    thought: str = ""
    fresh: str = ""
    thinking: int = 0

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def finish(self) -> str | None:
        return None if self.end is None else "length" if self.end == "limit" else "stop"


@dataclass(frozen=True)
class Writer:
    """Reads requests and writes answers as one kind of server does."""

    traits: Traits
    language: Language
    served: str

    # Reading

    def job(self, endpoint: Endpoint, body: Json) -> Job:
        """Raises Refused."""
        if endpoint == "generate":
            return self._generate(body)
        if endpoint == "completion":
            body = {**body, "max_tokens": body.get("n_predict", -1), "logprobs": body.get("n_probs") or None}
        traits, chat = self.traits, endpoint == "chat"
        self._check_names(endpoint, body)
        prompt, text = self._chat(body) if chat else self._prompt(body.get("prompt"))
        logprobs = self._logprobs(body, chat)
        echo = self._obeyed(traits.echo, "echo") if not chat and body.get("echo") else False
        scored = body.get("prompt_logprobs") if traits.prompt_logprobs else None
        if scored is not None and scored > traits.top_logprobs:
            raise Refused(400, f"Requested prompt logprobs of {scored}, but the most is {traits.top_logprobs}")
        if echo and logprobs is not None:
            scored = logprobs
        how = self._drawing(body, chat, len(prompt), scored is not None)
        if traits.answers_held and not chat and "</think>" not in self.language.decode(prompt):
            how = replace(how, held_to=None)
        count = 1
        if int(body.get("n") or 1) > 1 and self._obeyed(traits.n, "n"):
            count = int(body["n"])
        seeds = [None if how.seed is None else how.seed + place for place in range(count)]
        stops = body.get("stop") or []
        thinks = self._thinks(body) if chat else None
        included = traits.stop_included is not None and bool(body.get(traits.stop_included))
        options = body.get("stream_options") or {}
        return Job(
            endpoint,
            self.served if body.get("model") is None else str(body["model"]),
            tuple(prompt),
            tuple(replace(how, seed=seed) for seed in seeds),
            tuple([stops] if isinstance(stops, str) else stops),
            traits.keeps_stop or included,
            bool(body.get("stream")),
            traits.usage_in_stream == "always" or bool(options.get("include_usage")),
            logprobs,
            scored,
            tuple(body.get("logprob_token_ids") or ()) if traits.named_logprobs and endpoint == "completions" else (),
            echo=text if echo else None,
            ids_as_tokens=traits.answers_ids and bool(body.get("return_tokens_as_token_ids")),
            returns_ids=bool(body.get("return_token_ids")) if traits.answers_ids else bool(body.get("return_tokens")),
            thinks=thinks,
            rest=chat and self._is_on(body) and bool(body.get("continue_final_message")),
        )

    def _thinks(self, body: Json) -> Thinks | None:
        """How the model thinks before it answers. Raises Refused."""
        traits = self.traits
        if traits.thoughts is None or body["messages"][-1]["role"] == "assistant":
            return None
        effort = body.get("reasoning_effort")
        if traits.efforts and effort is not None and effort not in traits.efforts:
            raise Refused(400, f"Unsupported value: `reasoning_effort` does not support {effort!r}")
        if not self._is_on(body):
            return None
        most = body.get(traits.thought_bound) if traits.thought_bound else None
        return Thinks(most, 1.0 + (traits.efforts.index(effort) if effort in traits.efforts else 1))

    def _is_on(self, body: Json) -> bool:
        """Whether a model that thinks is to do so."""
        traits = self.traits
        on = traits.thinks
        if "chat_template_kwargs" in traits.switches:
            on = bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", on))
        if "thinking" in traits.switches:
            on = (body.get("thinking") or {}).get("type", "enabled" if on else "disabled") == "enabled"
        return on

    def _check_names(self, endpoint: Endpoint, body: Json) -> None:
        if endpoint in ("chat", "completions"):
            there = self.traits.chat if endpoint == "chat" else self.traits.completions
            if not there:
                raise Refused(404, "Not Found")
        known = STANDARD | {"top_k", "min_p"} | {name.partition(".")[0] for name in self.traits.held}
        known |= {*self.traits.switches}
        unknown = sorted(set(body) - known)
        if unknown and isinstance(self.traits.unknown, int):
            raise Refused(self.traits.unknown, f"Unexpected fields in the request: {unknown}")
        named = body.get("model")
        if named is not None and named != self.served and self.traits.name in ("vllm", "openai", "transformers serve"):
            raise Refused(404, f"The model `{named}` does not exist.")

    def _chat(self, body: Json) -> tuple[list[int], str]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "messages must be a list of at least one")
        goes_on = self.traits.prefill == "always" and messages[-1]["role"] == "assistant"
        if self.traits.prefill == "flag" and body.get("continue_final_message"):
            if self.traits.name == "vllm" and body.get("add_generation_prompt", True):
                raise Refused(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
            goes_on = True
        given = [bool(message.get("reasoning") or message.get("reasoning_content")) for message in messages]
        if any(given) and not self.traits.returns_thoughts:
            raise Refused(400, "Unknown parameter: 'messages[0].reasoning'")
        if goes_on and given[-1]:
            thought = self._closed(messages[-1].get(self.traits.thoughts or "", ""))
            ids = [
                *self.language.chat(messages[:-1]),
                *thought,
                *self.language.encode(" " + messages[-1]["content"].lstrip()),
            ]
        else:
            ids = self.language.chat(messages, goes_on=goes_on)
        return ids, self.language.decode(ids)

    def _prompt(self, prompt: object) -> tuple[list[int], str]:
        if isinstance(prompt, str):
            return self.language.encode(prompt), prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (list, str)):
            return self._prompt(prompt[0])
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            self._obeyed(self.traits.ids, "prompt")
            if max(prompt) >= self.language.size:
                raise Refused(400, f"Token id {max(prompt)} is out of vocabulary")
            return list(prompt), self.language.decode(prompt)
        raise Refused(400, "prompt must be a text or token ids")

    def _logprobs(self, body: Json, chat: bool) -> int | None:
        asked = body.get("logprobs")
        if chat:
            top = body.get("top_logprobs", 0 if self.traits.chat_logprobs else None)
            asked = top if asked else None
        elif asked is not None:
            asked = int(asked)
        if asked is None or self.traits.logprobs is None:
            return None
        if asked > self.traits.top_logprobs:
            raise Refused(400, f"Requested sample logprobs of {asked}, but the most is {self.traits.top_logprobs}")
        return int(asked)

    def _drawing(self, body: Json, chat: bool, prompt: int, scored: bool) -> Drawing:
        traits = self.traits
        room = traits.context - prompt
        most = body.get("max_tokens")
        if chat and body.get("max_completion_tokens") is not None and traits.max_completion_tokens == "heeded":
            most = body["max_completion_tokens"]
        if room <= 0:
            raise Refused(400, f"This model's maximum context length is {traits.context} tokens, not {prompt}.")
        if most is None:
            most = room if chat or traits.name == "llama-server" else 16
        if most == 0 and not traits.unlimited_zero and not scored:
            raise Refused(400, "max_tokens must be at least 1, got 0.")
        if most < 0 or (most == 0 and traits.unlimited_zero):
            most = room
        if most > (room if traits.name == "openai" else traits.context) and traits.name in ("vllm", "openai"):
            raise Refused(400, f"max_tokens={most} cannot be greater than max_model_len={traits.context}.")
        temperature = body.get("temperature")
        if traits.own_temperature and temperature not in (None, 1):
            raise Refused(400, f"Unsupported value: 'temperature' does not support {temperature} with this model.")
        if traits.own_temperature and body.get("max_tokens") is not None:
            raise Refused(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        held = self._held_to(body, chat)
        if held is not None:
            try:
                self.language.mask(*held)
            except ConstraintError as error:
                raise Refused(400, f"Invalid structured output: {error}") from error
        top_k = body.get("top_k") if self._asks(body, "top_k", traits.top_k) else None
        return Drawing(
            (1.0 if temperature is None else float(temperature)) if traits.sampled else 0.0,
            self._seed(body.get("seed")),
            top_k if top_k is not None and top_k > 0 else None,
            body.get("top_p") if self._asks(body, "top_p", traits.top_p) else None,
            body.get("min_p") if self._asks(body, "min_p", traits.min_p) else None,
            bool(body.get("ignore_eos")),
            min(most, room),
            held,
        )

    def _seed(self, asked: object) -> int | None:
        if asked is None or not self.traits.seeds:
            return None
        if not isinstance(asked, int) or not -(2**63) <= asked < 2**63:
            raise Refused(400, "seed must be an integer of 64 bits")
        seed = asked % self.traits.seed_modulus
        return None if seed == self.traits.random_seed else seed

    def _held_to(self, body: Json, chat: bool) -> tuple[str, str] | None:
        asked = body.get("response_format") or {}
        form = asked.get("type")
        schema = self.traits.json_schema
        if not chat and self.traits.text_json_schema is not None:
            schema = self.traits.text_json_schema
        if form == "json_schema" and self._obeyed(schema, "response_format"):
            return "json_schema", json.dumps(asked["json_schema"]["schema"])
        if form == "json_object" and self._obeyed(self.traits.json_object, "response_format"):
            return "json_schema", json.dumps(asked["schema"]) if "schema" in asked else _OBJECT
        for name, language in self.traits.held.items():
            outer, _, inner = name.partition(".")
            value = (body.get(outer) or {}).get(inner) if inner else body.get(outer)
            if value is None:
                continue
            if language in ("json", "choice"):
                kind = "json_schema" if language == "json" else "choice"
                return kind, value if isinstance(value, str) else json.dumps(value)
            # vLLM takes Lark as well as GBNF.
            return "gbnf" if language == "grammar" and "::=" in value else language, value
        return None

    def _generate(self, body: Json) -> Job:
        """SGLang's own endpoint."""
        params = body.get("sampling_params") or {}
        prompt, _ = self._prompt(body.get("input_ids") or body.get("text"))
        flat = {
            **params,
            "max_tokens": params.get("max_new_tokens", 128),
            "seed": params.get("sampling_seed"),
        }
        how = self._drawing({**flat, "max_tokens": flat["max_tokens"] or 1}, False, len(prompt), False)
        if flat["max_tokens"] == 0:
            how = replace(how, most=0)
        stops = params.get("stop") or []
        told = bool(body.get("return_logprob"))
        start = body.get("logprob_start_len", -1)
        return Job(
            "generate",
            self.served,
            tuple(prompt),
            (how,),
            tuple([stops] if isinstance(stops, str) else stops),
            bool(params.get("no_stop_trim")),
            bool(body.get("stream")),
            True,
            int(body.get("top_logprobs_num") or 0) if told else None,
            int(start) if told and start is not None and start >= 0 else None,
            tuple(body.get("token_ids_logprob") or ()),
        )

    def _asks(self, body: Json, name: str, heed: Heed) -> bool:
        return body.get(name) is not None and self._obeyed(heed, name)

    def _obeyed(self, heed: Heed, name: str) -> bool:
        """Whether a field that is there does anything. Raises Refused."""
        if isinstance(heed, int):
            raise Refused(heed, f"`{name}` is not supported")
        return heed == "heeded"

    # Drawing

    async def write(
        self, job: Job, number: int, writes: Writes | None, beat: Callable[[], Any]
    ) -> AsyncIterator[tuple[Choice, str, list[Token]]]:
        """Gives, after each token, the choice, and what text and tokens are new. `beat` is awaited before each."""
        choice, how = Choice(number), job.drawings[number]
        holds = max((len(stop) for stop in job.stops), default=1) - 1
        if job.thinks is not None:
            for token in self._thought(job, job.thinks, how, writes):
                await beat()
                choice.tokens.append(token)
                choice.thinking += 1
                whole = self.language.decode(choice.ids)
                choice.fresh, choice.thought = whole[len(choice.thought) :], whole
                if choice.thinking == how.most:
                    choice.end = "limit"
                yield choice, "", [token]
                if choice.end is not None:
                    return
            choice.fresh = ""
            how = replace(how, most=how.most - choice.thinking)
            job = replace(job, prompt=job.prompt + tuple(self._closed(choice.thought)))
            answers = writes
            writes = None if answers is None else lambda prompt, seed: _answer(answers(prompt, seed))
        elif writes is not None and self.traits.thoughts is not None:
            plain = writes
            writes = lambda prompt, seed: _answer(plain(prompt, seed))  # noqa: E731
        for token in self._tokens(job, how, writes):
            await beat()
            choice.tokens.append(token)
            whole = self.language.decode(choice.ids[choice.thinking :])
            found = min(((whole.find(stop), stop) for stop in job.stops if stop in whole), default=None)
            if found is not None:
                place, choice.word = found
                whole = whole[: place + (len(choice.word) if job.keeps_stop else 0)]
                choice.end = "word"
            elif token.id == self.language.eos and not how.ignore_eos:
                choice.end = "eos"
                whole += _END * (self.traits.end_is_text and job.keeps_stop and job.endpoint == "chat")
            elif len(choice.tokens) - choice.thinking == how.most:
                choice.end = "limit"
            else:
                whole = whole[: max(len(choice.text), len(whole) - holds)].rstrip("\ufffd")
            new, choice.text = whole[len(choice.text) :], whole
            yield choice, new, [token]
            if choice.end is not None:
                return
        # No token was asked for, or none can follow under the constraint.
        choice.end = "limit" if how.most == 0 else "eos"
        whole = self.language.decode(choice.ids[choice.thinking :])
        new, choice.text = whole[len(choice.text) :], whole
        yield choice, new, []

    def _thought(self, job: Job, thinks: Thinks, how: Drawing, writes: Writes | None) -> Iterator[Token]:
        """A thought: what a test says before its answer, or some tokens, more of them with more effort."""
        told = None if writes is None else writes(self.language.decode(job.prompt), how.seed or 0)
        most = how.most if thinks.most is None else min(how.most, thinks.most)
        usual = int((9 + sum(job.prompt) % 7) * thinks.effort)
        drawing = replace(how, held_to=None, ignore_eos=True, most=min(most, usual))
        if told is None:
            return (token for token in self.language.write(job.prompt, drawing))
        text = told.partition("</think>")[0].removeprefix("<think>") if "</think>" in told else ""
        ids = self.language.encode(text)[:most]
        return (Token(id, self.language.logprobs(job.prompt)) for id in ids)

    def _closed(self, thought: str) -> list[int]:
        """The ids of a thought with what closes it."""
        return [*self.language.encode(thought), self.language.eos]

    def _tokens(self, job: Job, how: Drawing, writes: Writes | None) -> Iterator[Token]:
        if job.echo is not None and how.most == 0:
            return iter(())
        return self.language.write(job.prompt, how, writes)

    # Writing

    def whole(self, job: Job, choices: Sequence[Choice], cached: int, number: int) -> Json:
        """The answer of a request that is not streamed."""
        if job.endpoint == "completion":
            return self._native(job, choices[0], choices[0].text, choices[0].tokens, cached)
        if job.endpoint == "generate":
            return self._native_sglang(job, choices[0], cached)
        written = []
        for choice in choices:
            one: Json = {"index": choice.number, "finish_reason": choice.finish}
            if job.endpoint == "chat":
                one["message"] = {"role": "assistant", "content": choice.text, **self._apart(choice.thought)}
                if self.traits.unended or (job.rest and self.traits.rest_is_thought):
                    one["message"] |= {"content": None, **self._apart(choice.thought + choice.text)}
            else:
                one["text"] = (job.echo or "") + choice.text
            self._tell(one, job, choice, choice.tokens, whole=True)
            written.append(one)
        name = "chat.completion" if job.endpoint == "chat" else "text_completion"
        drawn = sum(len(choice.tokens) for choice in choices)
        answer = {**self._head(job, name, number), "choices": written, "usage": self._usage(job, choices, cached)}
        if self.traits.name == "llama-server":
            answer["timings"] = {"cache_n": cached, "prompt_n": len(job.prompt) - cached, "predicted_n": drawn}
        return answer

    def event(self, job: Job, choice: Choice, new: str, tokens: list[Token], cached: int, number: int) -> Json:
        """A chunk of a stream."""
        if job.endpoint == "completion":
            return self._native(job, choice, new, tokens, cached)
        if job.endpoint == "generate":
            return self._native_sglang(job, choice, cached)
        one: Json = {"index": choice.number, "finish_reason": choice.finish}
        if job.endpoint == "chat":
            one["delta"] = self._apart(choice.fresh or new * self.traits.unended) or {"content": new}
            if len(choice.tokens) <= 1:
                one["delta"]["role"] = "assistant"
        else:
            one["text"] = new
        self._tell(one, job, choice, tokens, whole=False)
        name = "chat.completion.chunk" if job.endpoint == "chat" else "text_completion"
        return {**self._head(job, name, number), "choices": [one]}

    def last_event(self, job: Job, choices: Sequence[Choice], cached: int, number: int) -> Json:
        """The chunk with the usage alone."""
        name = "chat.completion.chunk" if job.endpoint == "chat" else "text_completion"
        return {**self._head(job, name, number), "choices": [], "usage": self._usage(job, choices, cached)}

    def _apart(self, thought: str) -> Json:
        field = self.traits.thoughts
        return {field: thought} if thought and field not in (None, "hidden") else {}

    def _head(self, job: Job, name: str, number: int) -> Json:
        head: Json = {"id": f"cmpl-{number}", "object": name, "created": 1_790_000_000 + number, "model": self.served}
        if self.traits.name == "llama-server":
            head["system_fingerprint"] = self.traits.version
        return head

    def _usage(self, job: Job, choices: Sequence[Choice], cached: int) -> Json:
        count, drawn = len(job.prompt), sum(len(choice.tokens) for choice in choices)
        usage: Json = {"prompt_tokens": count, "completion_tokens": drawn, "total_tokens": count + drawn}
        if self.traits.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        elif self.traits.name in ("vllm", "sglang"):
            usage["prompt_tokens_details"] = None
        if self.traits.counts_thoughts:
            thinking = 0 if self.traits.counts_thoughts == "zero" else sum(choice.thinking for choice in choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": thinking}
        return usage

    def _tell(self, one: Json, job: Job, choice: Choice, tokens: list[Token], *, whole: bool) -> None:
        """Adds log-probabilities, ids and the stop string to a choice."""
        if self.traits.names_stop is not None:
            one[self.traits.names_stop] = choice.word
        if job.returns_ids:
            one["token_ids"] = [token.id for token in tokens]
        one["logprobs"] = None
        ids = [token.id for token in tokens]
        rows: list[Floats | None] = [token.logprobs for token in tokens]
        if whole and job.prompt_logprobs is not None:
            given: list[Floats | None] = [None, *self._given(job)]
            if self.traits.prompt_logprobs:
                one["prompt_logprobs"] = self._by_id(job, given)
            if job.echo is not None:
                ids, rows = [*job.prompt, *ids], [*given, *rows]
        if job.logprobs is None:
            return
        if job.endpoint == "chat" or self.traits.name == "llama-server":
            pairs = [(token, row) for token, row in zip(ids, rows, strict=True) if row is not None]
            one["logprobs"] = {"content": [self._told(job, token, row) for token, row in pairs]}
        else:
            one["logprobs"] = self._columns(job, ids, rows)

    def _given(self, job: Job) -> list[Floats]:
        """Log-probabilities of what follows each but the last id of the prompt."""
        return [self.language.logprobs(job.prompt[: place + 1]) for place in range(len(job.prompt) - 1)]

    def _by_id(self, job: Job, rows: Sequence[Floats | None]) -> list[Json | None]:
        """vLLM's `prompt_logprobs`."""
        found: list[Json | None] = []
        for token, row in zip(job.prompt, rows, strict=True):
            if row is None:
                found.append(None)
                continue
            found.append(
                {
                    str(one): {
                        "logprob": float(row[one]),
                        "rank": int((row > row[one]).sum()) + 1,
                        "decoded_token": self.language.decode([one]),
                    }
                    for one in dict.fromkeys([token, *self._best(row, job.prompt_logprobs or 0)])
                }
            )
        return found

    def _told(self, job: Job, token: int, row: Floats) -> Json:
        one = self._one(job, token, row)
        one["top_logprobs"] = [self._one(job, best, row) for best in self._best(row, job.logprobs or 0)]
        return one

    def _one(self, job: Job, token: int, row: Floats) -> Json:
        text = self._token_text(job, token)
        one: Json = {"token": text, "logprob": max(float(row[token]), _MIN_LOGPROB), "bytes": list(text.encode())}
        return {"id": token, **one} if self.traits.name == "llama-server" else one

    def _columns(self, job: Job, ids: Sequence[int], rows: Sequence[Floats | None]) -> Json:
        """OpenAI's older form, a column for each of what is told."""
        texts = [self._token_text(job, token) for token in ids]
        places = [sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "text_offset": places,
            "tokens": texts,
            "token_logprobs": [None if row is None else float(row[one]) for one, row in zip(ids, rows, strict=True)],
            "top_logprobs": [
                None
                if row is None
                else {
                    self._token_text(job, one): float(row[one])
                    for one in dict.fromkeys([token, *(job.of_ids or self._best(row, job.logprobs or 0))])
                }
                for token, row in zip(ids, rows, strict=True)
            ],
        }

    def _token_text(self, job: Job, token: int) -> str:
        return f"token_id:{token}" if job.ids_as_tokens else str(self.language.tokenizer.decode([token]))

    def _best(self, row: Floats, count: int) -> list[int]:
        return [int(token) for token in np.argsort(-row, kind="stable")[:count]]

    def _native(self, job: Job, choice: Choice, text: str, tokens: list[Token], cached: int) -> Json:
        """llama-server's own endpoint."""
        answer: Json = {"index": 0, "content": text, "stop": choice.end is not None, "model": self.served}
        answer["tokens"] = [token.id for token in tokens] if job.returns_ids or job.stream else []
        answer |= {"tokens_predicted": len(choice.tokens), "tokens_evaluated": len(job.prompt)}
        if choice.end is not None:
            answer |= {"stop_type": choice.end, "stopping_word": choice.word or "", "truncated": False}
            answer["timings"] = {"cache_n": cached, "prompt_n": len(job.prompt) - cached}
            answer["tokens_cached"] = len(job.prompt) + len(choice.tokens)
        if job.logprobs is not None:
            answer["completion_probabilities"] = [self._told(job, token.id, token.logprobs) for token in tokens]
        return answer

    def _native_sglang(self, job: Job, choice: Choice, cached: int) -> Json:
        """SGLang's own endpoint; in a stream each event has all that there is so far."""
        how: Json | None = None
        if choice.end == "limit":
            how = {"type": "length", "length": len(choice.tokens)}
        elif choice.end is not None:
            how = {"type": "stop", "matched": choice.word if choice.end == "word" else self.language.eos}
        meta: Json = {"id": "1", "finish_reason": how, "prompt_tokens": len(job.prompt), "cached_tokens": cached}
        meta["completion_tokens"] = len(choice.tokens)
        if job.logprobs is not None:
            drawn = [(token.id, token.logprobs) for token in choice.tokens]
            meta |= self._sglang_logprobs(job, "output", drawn)
            if job.prompt_logprobs is not None:
                given = zip(job.prompt[1:], self._given(job), strict=True)
                meta |= self._sglang_logprobs(job, "input", [(job.prompt[0], None), *given], job.prompt_logprobs)
        return {"text": choice.text, "output_ids": choice.ids, "meta_info": meta}

    def _sglang_logprobs(
        self, job: Job, side: str, pairs: Sequence[tuple[int, Floats | None]], start: int = 0
    ) -> Mapping[str, Any]:
        def told(row: Floats | None, tokens: Sequence[int]) -> list[Any] | None:
            return None if row is None or not tokens else [[float(row[one]), one, None] for one in tokens]

        rest = pairs[start:]
        return {
            f"{side}_token_logprobs": [[None if row is None else float(row[one]), one, None] for one, row in rest],
            f"{side}_top_logprobs": [
                told(row, [] if row is None else self._best(row, job.logprobs or 0)) for _, row in rest
            ],
            f"{side}_token_ids_logprobs": [told(row, job.of_ids) for _, row in rest],
        }

    def error(self, status: int, message: str, param: str | None = None) -> Json:
        kind = {401: "AuthenticationError", 404: "NotFoundError"}.get(status, "BadRequestError")
        if self.traits.name == "transformers serve":
            return {"detail": message}
        if self.traits.name == "sglang":
            return {"object": "error", "message": message, "type": kind, "param": param, "code": status}
        if self.traits.name == "llama-server":
            return {"error": {"code": status, "message": message, "type": "invalid_request_error"}}
        return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _answer(told: str | None) -> str | None:
    """What a test has written after a thought."""
    return None if told is None else told.rpartition("</think>")[2]
