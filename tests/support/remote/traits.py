"""How each kind of server behaves: what it heeds, what it takes with a 200 and ignores, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

# What becomes of a field: it does what it says, it is taken and does nothing, or the status with which it is refused.
Heed = Literal["heeded", "ignored"] | int
# A field that holds output to something, and in what language: "json" is JSON Schema, as text or as an object.
Held = Mapping[str, Literal["json", "regex", "grammar", "gbnf", "choice"]]


@dataclass(frozen=True, slots=True)
class Traits:
    """The behaviour of one kind of server.

    `ids`: token ids as a prompt. `n`: several choices. `seeds`: a seed decides the draws, taken modulo
    `seed_modulus`; `random_seed` stands for none. `sampled`: a temperature above 0 has tokens drawn, else they stay
    greedy. `logprobs`: what is told of tokens: "ids" with their ids, "text" by their texts, None for nothing.
    `answers_ids`: the ids of sampled tokens can be asked for. `echo`: log-probabilities of given text;
    `prompt_logprobs`: of given ids, by that name; `named_logprobs`: of ids that `logprob_token_ids` names.
    `unlimited_zero`: `max_tokens=0` asks for text without end. `json_schema`: `response_format` of that type;
    `json_object` with a schema in it. `held`: further fields that hold output to something. `names_stop`: the field
    of a choice that names the stop string; `keeps_stop`: the string stays in the text; `stop_included`: the field
    that keeps it. `prefill`: "flag" where two fields ask for it, "always" where it is done unasked.
    `cached_tokens`: usage tells them. `max_completion_tokens`. `unknown`: a field that it does not know. `cancels`:
    it stops when the client goes. `done`: a stream ends with `[DONE]`; `usage_in_stream`: always, or where asked.
    `reward`: it serves a reward model, of two classes; `reward_shares`: which tells probabilities where it is asked
    for logits; `reward_rows`: a row for every token, or for each that is equal to the last one. `top_logprobs`: the
    most that may be asked for. `context` in tokens.

    `thoughts`: the field of a chat's message that has the thought, "hidden" where it is counted alone, None of a model
    that does not think. `thinks`: it does where nothing is said. `switches`: what it heeds of `chat_template_kwargs`
    and `thinking`; `efforts`: the words of `reasoning_effort` that change something, where others are refused.
    `thought_bound`: the field that bounds a thought. `counts_thoughts`: usage tells them, or that there were none.
    `returns_thoughts`: a message may have one. `own_temperature`: none but 1 is taken.

    `answers_held`: nothing is held to a constraint before a thought has ended. `rest_is_thought`: the rest of an answer
    that was begun is told as a thought, where it is not streamed and thoughts are not switched off. `end_is_text`:
    where stops are kept in the text of a chat, the model's end is too. `unended`: all of a chat's answer is told as its
    thought.
    """

    name: str
    version: str
    owned_by: str
    chat: bool = True
    completions: bool = True
    ids: Heed = "heeded"
    n: Heed = "heeded"
    seeds: bool = True
    seed_modulus: int = 2**63
    random_seed: int | None = None
    sampled: bool = True
    top_k: Heed = "heeded"
    top_p: Heed = "heeded"
    min_p: Heed = "heeded"
    logprobs: Literal["ids", "text"] | None = "text"
    chat_logprobs: bool = True
    top_logprobs: int = 20
    answers_ids: bool = False
    echo: Heed = "heeded"
    prompt_logprobs: bool = False
    named_logprobs: bool = False
    unlimited_zero: bool = False
    json_schema: Heed = "heeded"
    text_json_schema: Heed | None = None
    json_object: Heed = "heeded"
    held: Held = field(default_factory=dict)
    names_stop: str | None = None
    keeps_stop: bool = False
    stop_included: str | None = None
    prefill: Literal["flag", "always"] | None = None
    cached_tokens: bool = False
    max_completion_tokens: Heed = "heeded"
    unknown: Heed = "ignored"
    cancels: bool = True
    done: bool = True
    usage_in_stream: Literal["asked", "always"] = "asked"
    reward: bool = False
    reward_shares: bool = False
    reward_rows: Literal["tokens", "steps"] = "tokens"
    context: int = 1024
    thoughts: str | None = None
    thinks: bool = True
    switches: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    thought_bound: str | None = None
    counts_thoughts: bool | Literal["zero"] = False
    returns_thoughts: bool = True
    own_temperature: bool = False
    answers_held: bool = False
    rest_is_thought: bool = False
    end_is_text: bool = False
    unended: bool = False


# The fields of OpenAI's API, known to servers that refuse what they do not know.
STANDARD = {
    *("model", "prompt", "messages", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p"),
    *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "echo", "user"),
    *("presence_penalty", "frequency_penalty", "logit_bias", "suffix", "best_of", "generation_config"),
    "reasoning_effort",
}

VLLM = Traits(
    "vllm",
    "0.32.0",
    "vllm",
    # As torch's generator on a CPU has it.
    seed_modulus=2**32,
    logprobs="ids",
    answers_ids=True,
    prompt_logprobs=True,
    named_logprobs=True,
    held={
        "structured_outputs.json": "json",
        "structured_outputs.regex": "regex",
        "structured_outputs.grammar": "grammar",
        "structured_outputs.choice": "choice",
    },
    names_stop="stop_reason",
    stop_included="include_stop_str_in_output",
    prefill="flag",
)
SGLANG = Traits(
    "sglang",
    "0.5.9",
    "sglang",
    answers_ids=True,
    held={"json_schema": "json", "regex": "regex", "ebnf": "gbnf"},
    names_stop="matched_stop",
    stop_included="no_stop_trim",
    prefill="flag",
)
LLAMA_SERVER = Traits(
    "llama-server",
    "b1-0c1e570",
    "llamacpp",
    seed_modulus=2**32,
    random_seed=2**32 - 1,
    logprobs="ids",
    echo="ignored",
    held={"grammar": "gbnf", "json_schema": "json"},
    cached_tokens=True,
)
LLAMA_CPP_PYTHON = Traits(
    "llama_cpp.server",
    "0.3.36",
    "me",
    ids=500,
    n="ignored",
    seed_modulus=2**32,
    unlimited_zero=True,
    chat_logprobs=False,
    json_schema=500,
    held={"grammar": "gbnf"},
    max_completion_tokens="ignored",
)
TRANSFORMERS = Traits(
    "transformers serve",
    "",
    "",
    ids=400,
    n="ignored",
    sampled=False,
    top_k=422,
    min_p=422,
    logprobs=None,
    echo=500,
    json_schema="ignored",
    text_json_schema=422,
    json_object="ignored",
    keeps_stop=True,
    unknown=422,
    done=False,
    usage_in_stream="always",
)
OPENAI = Traits(
    "openai",
    "",
    "openai",
    completions=False,
    top_k=400,
    min_p=400,
    cached_tokens=True,
    unknown=400,
)
KINDS = {kind.name: kind for kind in (VLLM, SGLANG, LLAMA_SERVER, LLAMA_CPP_PYTHON, TRANSFORMERS, OPENAI)}
# The same with a model that thinks: vLLM with a reasoning parser (`qwen3`), and two APIs.
VLLM_THINKING = replace(
    VLLM,
    thoughts="reasoning",
    switches=("chat_template_kwargs",),
    thought_bound="thinking_token_budget",
    counts_thoughts=True,
    answers_held=True,
    rest_is_thought=True,
    end_is_text=True,
)
DEEPSEEK_THINKING = replace(
    OPENAI,
    owned_by="deepseek",
    thoughts="reasoning_content",
    switches=("thinking",),
    counts_thoughts=True,
    json_schema=400,
    max_completion_tokens="ignored",
    unknown="ignored",
)
OPENAI_THINKING = replace(
    OPENAI,
    thoughts="hidden",
    efforts=("low", "medium", "high"),
    counts_thoughts=True,
    own_temperature=True,
    top_p="ignored",
    seeds=False,
    chat_logprobs=False,
    returns_thoughts=False,
)
KINDS |= {"vllm thinking": VLLM_THINKING, "deepseek": DEEPSEEK_THINKING, "openai thinking": OPENAI_THINKING}
