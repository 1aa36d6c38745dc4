"""Models that think, on servers that part thoughts from answers: vLLM with a parser, DeepSeek's API, OpenAI's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.dialects.dialect import CompletionChunk
from qpdsl.executor.remote.remote_model import EOS, WIDTH, text_of, text_tokenizer, tokens_of
from qpdsl.executor.remote.written_sample import WrittenSample
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.session.planning import Planning, reads_of
from qpdsl.session.programs import load_program, permitting
from qpdsl.session.session import Session
from qpdsl.session.settings import SessionSettings
from qpdsl.session.surroundings import Surroundings
from tests.support.cli import Run
from tests.support.remote.stub_server import StubServer, stub

DIALECTS = {"vllm thinking": "vllm", "deepseek": "openai", "openai thinking": "openai"}
ZOE = "Zoe has 3 boxes with 4 cards in each box. How many cards does Zoe have?"


def says(prompt: str, seed: int) -> str | None:
    """What a stub thinks and answers to Zoe's question; of a probe's texts it writes what it likes."""
    if "Zoe" not in prompt:
        return None
    if "thanks" in prompt:
        return "<think>They are glad.</think>You are welcome."
    return f"<think>Three boxes,\n\nfour each; {seed % 1000}.</think>\n\n3 * 4 = 12.\n\nThe answer is 12."


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are given again to other stubs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def address(server: StubServer, kind: str) -> str:
    return f"{DIALECTS[kind]}:{server.url}#{server.model}"


def rows(model: str, program: str, completions: Path | None = None) -> tuple[Row, ...]:
    """The rows that a program about Zoe ends with."""
    logical = load_program(None, program, None, Surroundings(models={"llm": model}))
    logical = permitting(logical, "recorded")
    session = Session(completions=completions)
    plan = Planning().optimized(logical, reads_of(logical, text=True), SessionSettings()).plan
    session.load(plan)

    async def run() -> tuple[Row, ...]:
        async with session.running():
            result = await session.run(plan, {"q": ZOE}, 0)
            assert result.error is None, result.error
            return tuple(result.rows)

    return asyncio.run(run())


def columns(model: str, program: str, *names: str, completions: Path | None = None) -> list[Any]:
    (row,) = rows(model, program, completions)
    return [row.columns[name] for name in names]


@pytest.mark.parametrize("kind", ["vllm thinking", "deepseek"])
@pytest.mark.parametrize("stop", ["", ' stop="12.\\n"'], ids=["whole", "streamed"])
def test_a_thought_is_a_column_and_the_answer_is_the_text(kind: str, stop: str) -> None:
    with stub(kind, writes=says) as server:
        program = f"chat user=q | generate llm temperature=0{stop}"
        thought, text, count, tokens = columns(
            address(server, kind), program, "thought", "text", "thought_tokens", "tokens"
        )
    assert thought.startswith("Three boxes,\n\nfour each;")
    assert text == "3 * 4 = 12.\n" if stop else text == "3 * 4 = 12.\n\nThe answer is 12."
    assert 0 < count < tokens


def test_a_thought_that_is_kept_back_is_counted() -> None:
    program = "chat user=q | generate llm temperature=1"
    with stub("openai thinking", writes=says) as server:
        thought, text, count = columns(address(server, "openai thinking"), program, "thought", "text", "thought_tokens")
    assert thought is None and text.startswith("3 * 4") and count > 5


def test_a_bound_is_the_servers_and_the_rest_is_the_answers() -> None:
    with stub("vllm thinking") as server:
        model = address(server, "vllm thinking")
        free = columns(model, "chat user=q | generate llm temperature=0 max_tokens=20", "thought", "text")
        short = columns(model, "chat user=q | generate llm temperature=0 think=3 max_tokens=20", "thought", "text")
        last = server.bodies[-1]
        assert (last["thinking_token_budget"], "max_tokens" in last) == (3, True)
        assert len(short[0].split()) <= 3 < len(free[0].split()) and free[0].startswith(short[0])
        assert "max_tokens" not in server.bodies[-2]


def test_an_answer_is_cut_at_its_own_bound() -> None:
    with stub("deepseek", writes=says) as server:
        program = "chat user=q | generate llm temperature=0 max_tokens=4"
        text, finish = columns(address(server, "deepseek"), program, "text", "finish")
    assert "3 * 4 = 12.\n\nThe answer is 12.".startswith(text) and 0 < len(text) < 15 and finish == "length"


@pytest.mark.parametrize(
    ("kind", "think", "sent"),
    [
        ("vllm thinking", "off", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("vllm thinking", "0", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("deepseek", "off", {"thinking": {"type": "disabled"}}),
        ("openai thinking", '"high"', {"reasoning_effort": "high"}),
        ("vllm thinking", "on", {}),
    ],
)
def test_how_to_think_is_said_as_the_server_heeds_it(kind: str, think: str, sent: dict[str, Any]) -> None:
    heat = 1 if kind == "openai thinking" else 0
    with stub(kind, writes=says) as server:
        program = f"chat user=q | generate llm temperature={heat} think={think}"
        thought, count = columns(address(server, kind), program, "thought", "thought_tokens")
        last = server.bodies[-1]
    fields = {name: last[name] for name in ("chat_template_kwargs", "thinking", "reasoning_effort") if name in last}
    assert fields == sent and (count == 0) is (think in ("off", "0"))
    assert (thought is None) is (count == 0 or kind == "openai thinking")


@pytest.mark.parametrize(
    ("kind", "stage", "words"),
    [
        ("deepseek", "generate llm temperature=0 think=64", "takes no bound on a thought"),
        ("openai thinking", "generate llm think=off", "was not seen to heed `think=off`"),
        ("openai thinking", 'generate llm think="max"', "was not seen to heed `think=max`"),
        ("vllm thinking", 'generate llm temperature=0 think="low"', "was not seen to heed `think=low`"),
        ("vllm thinking", "generate llm temperature=0 only=thought", "gives a thought and its answer together"),
        ("vllm", "generate llm temperature=0 think=off", "does not part thoughts from answers"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_sent(
    qpdsl: Run, tmp_path: Path, kind: str, stage: str, words: str
) -> None:
    file = tmp_path / "p.qp"
    file.write_text(
        f'model llm = "zoo/counting"\nprogram p(q: text) -> text within recorded {{\n  chat user=q\n  {stage}\n}}\n'
    )
    with stub(kind, writes=says) as server:
        dialect = DIALECTS.get(kind, "vllm")
        ran = qpdsl("run", str(file), "--model", f"llm={dialect}:{server.url}#stub", "--set", f"q={ZOE}")
        assert not any("Zoe" in str(body) for body in server.bodies)
    assert ran.code == 2 and "QP403" in ran.err and words in ran.err and "^" in ran.err


@pytest.mark.parametrize("kind", ["vllm thinking", "deepseek"])
def test_shipped_programs_read_answers_alone(kind: str, qpdsl: Run) -> None:
    with stub(kind, writes=says) as server:
        for name in ("self_consistency", "best_of_n"):
            how = ("--model", f"llm={address(server, kind)}", "--set", f"problem={ZOE}", "--no-greedy", "--json")
            ran = qpdsl("run", name, "--set", "n=4", *how)
            assert ran.code == 0 and ran.records[0]["answer"] == "12"


def test_later_turns_have_the_thoughts_of_former_ones() -> None:
    program = 'chat user=q | generate llm temperature=0 | chat user="thanks" | generate llm temperature=0'
    with stub("vllm thinking", writes=says) as server:
        thought, text = columns(address(server, "vllm thinking"), program, "thought", "text")
        turn = server.bodies[-1]["messages"][1]
    assert (thought, text) == ("They are glad.", "You are welcome.")
    assert turn["content"].endswith("is 12.") and turn["reasoning"].startswith("Three boxes")
    with stub("vllm thinking", writes=says, returns_thoughts=False) as server:
        columns(address(server, "vllm thinking"), program, "text")
        assert server.bodies[-1]["messages"][1].keys() == {"role", "content"}


def test_an_answer_goes_on_behind_its_thought() -> None:
    program = 'chat user=q | generate llm temperature=0 stop="." | generate llm temperature=0 max_tokens=9'
    with stub("vllm thinking") as server:
        model = address(server, "vllm thinking")
        thought, text = columns(model, program, "thought", "text")
        last = server.bodies[-1]["messages"][-1]
        whole = columns(model, "chat user=q | generate llm temperature=0 max_tokens=200", "thought", "text")
    assert whole[0] == thought and whole[1].startswith(text) and last["reasoning"].strip() == thought
    assert text.startswith(last["content"]) and len(text) > len(last["content"])


def test_an_answer_in_steps_ends_without_the_models_mark() -> None:
    program = 'chat user=q | repeat 4 until all(finished) { generate llm temperature=0 stop="\\n\\n" }'

    def steps(prompt: str, seed: int) -> str | None:
        return None if "Zoe" not in prompt else "The answer is 12." if "= 12." in prompt else says(prompt, seed)

    with stub("vllm thinking", writes=steps) as server:
        thought, text, finish = columns(address(server, "vllm thinking"), program, "thought", "text", "finish")
    assert (thought[:11], text, finish) == ("Three boxes", "3 * 4 = 12.\n\nThe answer is 12.", "eos")


def test_a_thought_within_an_answer_is_refused() -> None:
    """The rest of an answer may be told as a thought, unless another answer stands behind it."""
    tokenizer = text_tokenizer()
    chat = tokenizer.apply_chat_template([{"role": "user", "content": ZOE}], add_generation_prompt=True)["input_ids"]
    request = GenerateRequest((*chat, *tokens_of("Three ")), (1,), SamplingParams(temperature=0.0), 9)
    model = TextModel("a server", tokenizer, frozenset({EOS}), 1024, WIDTH)

    def written(*pieces: CompletionChunk) -> str:
        sample = WrittenSample(request, 0, model, told=False)
        for piece in pieces:
            sample.push(piece)
        found = sample.sample()
        assert found is not None
        return text_of(found.tokens)

    assert written(CompletionChunk(thought="boxes", finish="length")) == "boxes"
    assert written(CompletionChunk(thought="bo"), CompletionChunk(thought="xes", finish="length")) == "boxes"
    with pytest.raises(EngineError, match="a thought after the answer had begun"):
        written(CompletionChunk("boxes", thought="Wait.", finish="length"))
    with pytest.raises(EngineError, match="a thought after the answer had begun"):
        written(CompletionChunk(thought="Wait."), CompletionChunk("boxes"))


def test_a_constraint_is_the_answers() -> None:
    program = "chat user=q | generate llm temperature=0.8 as int(1..99)"
    with stub("vllm thinking") as server:
        thought, text = columns(address(server, "vllm thinking"), program, "thought", "text")
    assert thought and 1 <= int(text) <= 99


def test_a_constraint_holds_no_plain_text_where_thoughts_are_parted(qpdsl: Run) -> None:
    with stub("vllm thinking") as server:
        model = f"llm={address(server, 'vllm thinking')}"
        program = 'prompt "{q} Zoe" | generate llm as int(1..99) temperature=0 | return text'
        ran = qpdsl("run", "-e", program, "--set", f"q={ZOE}", "--model", model)
        assert not any("Zoe" in str(body) for body in server.bodies)
    assert ran.code == 2 and "does not constrain its output to" in ran.err


def test_a_bound_that_nothing_reaches_is_the_context() -> None:
    program = 'chat user=q | generate llm stop="." temperature=0 | generate llm temperature=0 max_tokens=2048'
    with stub("vllm thinking") as server:
        columns(address(server, "vllm thinking"), program, "text")
        assert server.bodies[-1]["max_tokens"] == 1024


def test_a_count_of_no_tokens_cuts_no_answer() -> None:
    """vLLM's older parsers count none of a thought whose beginning the template writes."""
    answer = "Six. " * 12

    def long(prompt: str, seed: int) -> str | None:
        return f"<think>{'so ' * 40}</think>{answer}" if "Zoe" in prompt else None

    with stub("vllm thinking", writes=long, counts_thoughts="zero") as one:
        size = len(answer) + 1
        program = f"chat user=q | generate llm temperature=0 max_tokens={size}"
        text, count, tokens = columns(address(one, "vllm thinking"), program, "text", "thought_tokens", "tokens")
    assert text == answer and 0 < count < tokens


def test_samples_are_kept_with_their_thoughts(tmp_path: Path) -> None:
    program = "chat user=q | generate llm n=3 temperature=0.9 max_tokens=30"
    names = ("thought", "text", "thought_tokens", "tokens", "finish")
    with stub("vllm thinking") as server:
        model = address(server, "vllm thinking")
        first = rows(model, program, tmp_path / "kept.sqlite")
        asked = server.counts.requests
        again = rows(model, program, tmp_path / "kept.sqlite")
        assert server.counts.requests == asked
    told = [[[row.columns[name] for name in names] for row in drawn] for drawn in (first, again)]
    assert told[0] == told[1] and len({row.columns["thought"] for row in first}) > 1


def test_a_thought_without_room_for_an_answer_says_so() -> None:
    with stub("deepseek", context=36) as server:
        finish, text = columns(
            address(server, "deepseek"), "chat user=q | generate llm temperature=0", "finish", "text"
        )
    assert (finish, text) == ("thought", "")


def test_with_a_tokenizer_thoughts_are_bounded_here() -> None:
    """Token ids are sent: a thought is one request, and its answer another."""

    def marked(prompt: str, seed: int) -> str | None:
        if "Zoe" not in prompt:
            return None
        return "The answer is 12." if "</think>" in prompt else "<think>one two three four five six seven"

    program = "chat user=q | generate llm temperature=0 think=12 max_tokens=20"
    with stub("vllm", writes=marked) as server:
        model = f"vllm:{server.url}#stub tokenizer=zoo/counting think=<think>|</think>"
        thought, count, text = columns(model, program, "thought", "thought_tokens", "text")
        first, second = server.bodies[-2:]
    assert "one two three four five six seven".startswith(thought) and 0 < count <= 12
    # The server writes the mark before it as well, which is six tokens of this vocabulary.
    assert first["max_tokens"] == 12 + 6
    assert text == "The answer is 12." and second["max_tokens"] == 20
    assert second["prompt"][: len(first["prompt"])] == first["prompt"]


def test_with_a_tokenizer_a_stop_is_the_answers() -> None:
    """A server would find it in the white space behind the thought."""

    def marked(prompt: str, seed: int) -> str | None:
        if "Zoe" not in prompt:
            return None
        return "\n\nFour.\n\nTwelve." if "</think>" in prompt else "<think>So.\n\nWell.</think>"

    program = 'chat user=q | generate llm temperature=0 stop="\\n\\n"'
    with stub("vllm", writes=marked) as server:
        model = f"vllm:{server.url}#stub tokenizer=zoo/counting think=<think>|</think>"
        thought, text, finish = columns(model, program, "thought", "text", "finish")
    assert (thought, text, finish) == ("So.\n\nWell.", "Four.\n\n", "stop")


def test_think_in_an_id_is_refused_where_the_server_parts_thoughts() -> None:
    with stub("vllm thinking") as server, pytest.raises(ModelError, match="remove `think=`"):
        columns(
            f"{address(server, 'vllm thinking')} think=<a>|</a>", "chat user=q | generate llm temperature=0", "text"
        )
