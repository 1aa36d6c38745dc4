"""Programs called, awaited, mapped and streamed; sessions, seeds and models."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.executor.events.events import Event, InstanceDone, InstanceStarted
from tests.support.api.shipped import beam_search, greedy, llm

SHORT = """
model llm = "zoo/counting"
program short(problem: text, n: int = 2, max_tokens: int = 8, temperature: float = 0.8) -> text {
  chat user=problem
  generate llm n=n max_tokens=max_tokens temperature=temperature
}
"""


NONE = """
model llm = "zoo/counting"
program nothing(problem: text) -> text {
  chat user=problem
  generate llm max_tokens=2
  extract answer = /(nowhere)/
  return answer
}
"""


@pytest.fixture(scope="module")
def short() -> qp.Program[..., Any]:
    return qp.parse(SHORT)


def test_a_program_is_a_function(problem: str) -> None:
    answer = greedy(problem)
    assert answer == greedy(problem=problem) and int(answer)
    result = beam_search.run(problem, depth=6)
    assert result.error is None and result.value == beam_search(problem, depth=6)
    assert result.score is not None and result.tokens.sampled > 0 and result.seconds > 0
    assert result.rows[0]["answer"] == result.value and result.rows[0]["score"] == result.score


def test_a_run_that_comes_to_nothing(problem: str) -> None:
    result = beam_search.run(problem, depth=1)
    assert result.error is not None and "`final_answer` found nothing in the text" in result.error
    with pytest.raises(qp.RunError, match="matched nothing"):
        _ = result.value
    with pytest.raises(qp.RunError) as caught:
        beam_search(problem, depth=1)
    assert caught.value.result.rows


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "no value for `problem`"),
        (("a",), {"m": 1}, "no parameter `m`"),
        (("a",), {"problem": "b"}, "two values for `problem`"),
        (("a", 2, 3, 4.0, 5), {}, "takes 4 arguments, not 5"),
        (("a",), {"n": "2"}, "`n` takes a whole number"),
        (("a",), {"n": 0}, "`n` takes a whole number of at least 1"),
    ],
)
def test_arguments_that_do_not_fit(short: qp.Program[..., Any], args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(qp.ArgumentError, match=message):
        short(*args, **kwargs)


def test_in_an_event_loop(short: qp.Program[..., Any], problem: str) -> None:
    async def main() -> tuple[str, list[str], int]:
        with pytest.raises(RuntimeError, match=r"write `await program\.acall\(…\)`"):
            short(problem)
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.001)
                beats += 1

        heart = asyncio.create_task(beat())
        one = await short.acall(problem, max_tokens=40)
        many = await asyncio.gather(*(short.acall(problem, max_tokens=40) for _ in range(3)))
        heart.cancel()
        return one, list(many), beats

    one, many, beats = asyncio.run(main())
    assert many == [one] * 3 == [short(problem, max_tokens=40)] * 3
    assert beats


def test_what_would_block_an_event_loop_is_refused_there(short: qp.Program[..., Any], problem: str) -> None:
    async def main() -> None:
        for call in (lambda: short.run(problem), lambda: list(short.map([{}])), lambda: list(short.stream(problem))):
            with pytest.raises(RuntimeError, match="an event loop is running here, and this call would block it"):
                call()
        assert [piece async for piece in short.stream(problem)]

    asyncio.run(main())


def test_a_row_that_takes_too_long_fails_alone(short: qp.Program[..., Any], problem: str) -> None:
    """A row that would sample for an hour, beside rows that are as they would be alone."""
    rows = [{"problem": problem, "n": 1, "max_tokens": tokens} for tokens in (3, 450, 5)]
    endless = qp.parse(
        """
        program endless(problem: text, rounds: int = 2) -> text {
          chat user=problem
          repeat rounds { chat user="Again." | generate "zoo/counting" max_tokens=4 temperature=1 }
        }
        """
    )
    with qp.using(row_timeout=0.5):
        result = endless.run(problem, rounds=1000)
        assert result.error == "timed out: it took more than 0.5 s"
    with qp.using(row_timeout=0.05), pytest.raises(qp.RunError, match="timed out"):
        # Of another problem less is cached.
        endless(f"{problem} Well?", rounds=1000)
    by_program = endless.using(row_timeout=0.5)
    mixed = [{"problem": f"{problem} So?" if rounds > 2 else problem, "rounds": rounds} for rounds in (1, 1000, 2)]
    with qp.using(row_timeout=60):
        results = {result.index: result for result in by_program.map(mixed, concurrency=3)}
        assert (results[0].error, results[2].error) == (None, None) and "timed out" in str(results[1].error)
        assert [results[0].value, results[2].value] == [endless(problem, 1), endless(problem, 2)]
    assert short(**rows[0])


def test_a_cancelled_call_leaves_the_session_fit_for_use(short: qp.Program[..., Any], problem: str) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(short.acall(problem, n=64, max_tokens=400), 0.05)

    asyncio.run(main())
    assert short(problem)


def test_values_for_all_rows_and_rows_that_are_texts(short: qp.Program[..., Any], problem_texts: list[str]) -> None:
    """A row's own value goes first, as before `--set`."""
    by_hand = [short(text, n=3) for text in problem_texts[:2]]
    assert [result.value for result in _ordered(short.map(problem_texts[:2], n=3))] == by_hand
    rows = [{"problem": text, "n": 3} for text in problem_texts[:2]]
    assert [result.value for result in _ordered(short.map(rows, n=1))] == by_hand

    async def mapped() -> list[Any]:
        return [result async for result in short.amap(problem_texts[:2], n=3)]

    assert [result.value for result in _ordered(asyncio.run(mapped()))] == by_hand
    for rows_, more, message in (
        ([{"question": "x", "level": 1}], {}, "its fields are `question` and `level`"),
        (["x"], {"problem": "y"}, "row 0: a row is a mapping of arguments, not a str"),
        ([3], {}, 'a mapping of arguments, not a int; `{"problem": "…"}` is one'),
        ([], {"n": "many"}, "`n` takes a whole number"),
    ):
        with pytest.raises(qp.ArgumentError, match=re.escape(message)):
            list(short.map(rows_, **more))


def _ordered(results: Iterable[Any]) -> list[Any]:
    return sorted(results, key=lambda result: result.index)


def test_map(short: qp.Program[..., Any], problem_texts: list[str]) -> None:
    taken: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for index, text in enumerate(problem_texts):
            taken.append(index)
            yield {"problem": text, "n": 1, "note": "left alone", **({"id": "last"} if index == 3 else {})}

    results = []
    for result in short.map(rows(), concurrency=2):
        assert len(taken) <= len(results) + 2
        results.append(result)
        short(problem_texts[0])
    assert {result.index for result in results} == {0, 1, 2, 3}
    assert {result.id for result in results} == {"0", "1", "2", "last"}
    for result in results:
        assert result.value == short(problem_texts[result.index], n=1)


def test_map_gives_results_as_they_finish(short: qp.Program[..., Any], problem: str) -> None:
    rows = [{"problem": problem, "n": 1, "max_tokens": 120}, {"problem": problem, "n": 1, "max_tokens": 1}]
    assert [result.index for result in short.map(rows)] == [1, 0]


class Abreast:
    """A reader of events: how many rows ran at once at the most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def see(self, event: Event) -> None:
        self.now += isinstance(event, InstanceStarted) - isinstance(event, InstanceDone)
        self.most = max(self.most, self.now)


def test_map_starts_rows_as_the_plan_says(short: qp.Program[..., Any], problem: str) -> None:
    """With 16 samples a row, 4 rows are what keeps the plan's floor of 64 sequences at work."""
    session = qp.Session()
    program = short.using(session=session)
    rows = [{"problem": problem, "n": 16, "max_tokens": 24 + index} for index in range(12)]
    planned, limited = Abreast(), Abreast()
    stop = session.events.subscribe(planned.see)
    by_plan = list(program.map(rows))
    stop()
    session.events.subscribe(limited.see)
    by_hand = list(program.map(rows, concurrency=12))
    assert planned.most in (4, 5) and limited.most == 12
    assert sorted((result.index, result.value) for result in by_plan) == sorted(
        (result.index, result.value) for result in by_hand
    )

    async def main() -> list[Any]:
        return [(result.index, result.value) async for result in program.map(rows)]

    assert sorted(asyncio.run(main())) == sorted((result.index, result.value) for result in by_plan)


def test_map_that_is_left_early_gives_its_rows_up(short: qp.Program[..., Any], problem: str) -> None:
    rows = [{"problem": problem, "n": 16, "max_tokens": 4 + index} for index in range(12)]
    for _ in short.map(rows):
        break
    assert len(list(short.map(rows[:3]))) == 3


def test_map_in_an_event_loop(short: qp.Program[..., Any], problem_texts: list[str]) -> None:
    async def main() -> list[Any]:
        rows = [{"problem": text} for text in problem_texts]
        return [(result.index, result.value) async for result in short.map(rows, concurrency=3)]

    assert sorted(asyncio.run(main())) == [(index, short(text)) for index, text in enumerate(problem_texts)]


def test_map_takes_rows_that_come_asynchronously(short: qp.Program[..., Any], problem_texts: list[str]) -> None:
    async def main() -> list[Any]:
        seen = asyncio.Event()
        taken: list[int] = []

        async def rows() -> AsyncIterator[dict[str, Any]]:
            for index, text in enumerate(problem_texts):
                taken.append(index)
                yield {"problem": text, "n": 1}
                if index == 1:
                    # The next row waits for a result: it must not be the other way about.
                    await seen.wait()

        results = []
        async for result in short.map(rows(), concurrency=2):
            seen.set()
            assert len(taken) <= len(results) + 2
            results.append(result)
        return results

    results = asyncio.run(main())
    assert {result.index for result in results} == {0, 1, 2, 3}
    for result in results:
        assert result.value == short(problem_texts[result.index], n=1)


def test_what_goes_wrong_with_rows_that_come_asynchronously(short: qp.Program[..., Any], problem: str) -> None:
    async def rows(last: dict[str, Any] | None) -> AsyncIterator[dict[str, Any]]:
        yield {"problem": problem, "n": 1, "max_tokens": 1}
        if last is None:
            raise OSError("the source is gone")
        yield last

    async def main() -> None:
        with pytest.raises(qp.ArgumentError, match="row 1: no value for `problem`"):
            _ = [result async for result in short.map(rows({"text": problem}))]
        with pytest.raises(OSError, match="the source is gone"):
            _ = [result async for result in short.map(rows(None))]

    asyncio.run(main())
    with pytest.raises(TypeError, match="write `async for`"):
        list(short.map(rows(None)))


@pytest.mark.parametrize("rows", ["rows.jsonl", {"problem": "x"}, None, [3]])
def test_map_says_what_rows_are(short: qp.Program[..., Any], rows: Any) -> None:
    with pytest.raises(qp.ArgumentError, match="mapping of arguments, not a"):
        list(short.map(rows))


def test_map_says_which_row_does_not_fit(short: qp.Program[..., Any], problem: str) -> None:
    with pytest.raises(qp.ArgumentError, match="row 1: no value for `problem`"):
        list(short.map([{"problem": problem}, {"text": problem}]))
    assert list(short.map([])) == []


def test_stream(short: qp.Program[..., Any], problem: str) -> None:
    *pieces, last = short.stream(problem)
    assert isinstance(last, qp.Finished)
    rows: dict[tuple[int, ...], str] = {}
    for piece in pieces:
        assert isinstance(piece, qp.TextPiece) and piece.stage == 1
        rows[piece.path] = rows.get(piece.path, "") + piece.text
    assert [rows[0,], rows[1,]] == [row["text"] for row in last.result.rows]
    assert len(pieces) > 4 and last.result.value == short(problem)


def test_stream_in_an_event_loop(short: qp.Program[..., Any], problem: str) -> None:
    async def main() -> list[Any]:
        return [event async for event in short.stream(problem, n=1)]

    *pieces, last = asyncio.run(main())
    assert "".join(piece.text for piece in pieces) == last.result.value


def test_a_stream_that_is_left_early_ends(short: qp.Program[..., Any], problem: str) -> None:
    for event in short.stream(problem, n=8, max_tokens=200):
        assert isinstance(event, qp.TextPiece)
        break
    assert short(problem)


def test_seeds(short: qp.Program[..., Any], problem: str) -> None:
    hot = {"problem": problem, "temperature": 4}
    texts = {seed: short.using(seed=seed)(**hot) for seed in range(4)}
    assert len(set(texts.values())) == 4
    assert short(**hot) == texts[0]
    with qp.using(seed=3):
        assert short(**hot) == texts[3]
        assert short.using(seed=1)(**hot) == texts[1]
        with qp.using(seed=2):
            assert short(**hot) == texts[2]
    assert short(**hot) == texts[0]


def test_models(short: qp.Program[..., Any], problem: str) -> None:
    with pytest.raises(qp.ArgumentError, match="uses no model `lm`; did you mean `llm`"):
        short.using(models={"lm": "x"})
    moved = short.using(models={"llm": "./no/such/folder"})
    with pytest.raises(qp.ModelError, match="there is no folder `no/such/folder`"):
        moved(problem)
    with qp.using(models={"llm": "./no/such/folder", "other": "x"}):
        assert short.explain("json")["models"] == {"llm": "./no/such/folder"}
        with pytest.raises(qp.ModelError):
            short(problem)
        assert short.using(models={"llm": "zoo/counting"})(problem)
    assert short(problem)


def test_sessions(short: qp.Program[..., Any], problem: str) -> None:
    session = qp.Session(device="cpu", dtype="float32", kv_bytes=1 << 26)
    assert short.using(session=session)(problem) == short(problem)
    assert list(session._models) == ["zoo/counting"]
    with qp.using(kv_bytes=1 << 26) as own, qp.using(seed=1) as same:
        assert own is same and not own._models
        short(problem)
        assert own._models
    with pytest.raises(TypeError, match="which would make another"), qp.using(session, device="cpu"):
        pass
    with qp.using(exit_heads={"llm": Path("heads"), "": "all"}) as leaving:
        assert leaving.settings.exit_heads == {"llm": "heads", "": "all"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "tpu"}, "`tpu` is no device; there is `cpu`"),
        ({"kv_type": "int2"}, "`kv_type` is one of `int8`, `fp8` or `int4`, not `int2`"),
        ({"dtype": "int8"}, "`dtype` is one of `float32`, `bfloat16` or `float16`, not `int8`"),
        ({"kv_bytes": 0}, "`kv_bytes` takes a whole number of at least 1, not 0"),
        ({"threads": "2"}, '`threads` takes a whole number of at least 1, not the text "2"'),
        ({"exit_heads": "heads"}, "`exit_heads` takes folders by the names of models"),
        ({"seed": "a"}, "`seed` takes a whole number"),
        ({"session": "cpu"}, r"`session` takes a `qp.Session\(…\)`, not a str"),
    ],
)
def test_what_a_session_does_not_take(given: dict[str, Any], message: str) -> None:
    with pytest.raises(qp.ArgumentError, match=message), qp.using(**given):
        pass


def test_a_result_shows_what_came_of_the_run(short: qp.Program[..., Any], problem: str) -> None:
    (result,) = short.map([{"problem": problem, "n": 3, "id": "pens"}])
    assert repr(result).startswith(f"<result id='pens', value={result.value!r}, score=None, 3 rows, Tokens(prompt=")
    failed = beam_search.run(problem, depth=1)
    assert "error='`answer` is none: " in repr(failed)


def test_threads(short: qp.Program[..., Any], problem: str) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(short(problem))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [short(problem)] * 3


def test_pictures_and_texts(short: qp.Program[..., Any]) -> None:
    assert str(short) == str(qp.parse(str(short)))
    assert repr(short) == "<program short(problem: text, n: int, max_tokens: int, temperature: float) -> text>"
    assert "generate llm n=2" in short.explain() and "generate llm n=5" in short.explain(n=5)
    assert short.explain("json")["samples"] == 2 == short.plan.to_json()["samples"]
    assert str(short.plan) == short.explain() == repr(short.explain())
    assert short.explain()._repr_html_() == short.plan._repr_html_()


def test_a_decorated_program_keeps_what_its_function_says() -> None:
    @qp.program
    def documented(question: str, n: int = 2) -> str:
        """Answers a question."""
        return qp.chat(user=question).generate(llm, n=n)

    assert documented.__doc__ == "Answers a question." and documented.__name__ == "documented"
    assert [param.name for param in documented.params] == ["question", "n"]


def test_code_that_a_model_writes_runs_only_where_the_caller_allows_it() -> None:
    program = qp.parse('program p(code: text) -> float { score passes("assert f() == 2") of code | return score }')
    with pytest.raises(qp.UsageError, match=r"`p` runs code that a model writes, by `score passes\(…\)`"):
        program("def f(): return 2")
    with qp.using(allow_code=True):
        assert [program(f"def f(): return {number}") for number in (2, 3)] == [1.0, 0.0]


def test_a_table_needs_no_conversation() -> None:
    program = qp.parse("program p(xs: [text]) -> [text] { each x in xs | order by x | keep 2 by 1 | return list(x) }")
    assert program(["c", "a", "b"]) == ["a", "b"]
    with pytest.raises(qp.QpError, match="`keep` needs a context"):
        qp.parse("program p(xs: [text]) -> int { each x in xs | keep 2 by tokens | return count() }")


def test_what_code_fails_by_is_a_column() -> None:
    program = qp.parse(
        'program p(code: text) -> text? { extract why = failure("assert f() == 2") of code | return why }'
    )
    with pytest.raises(qp.UsageError, match=r"`p` runs code that a model writes, by `extract … = failure\(…\)`"):
        program("def f(): return 2")
    with qp.using(allow_code=True):
        told = [program(f"def f(): return {number}") for number in (2, 3)]
    assert told == [None, "tests, line 1: assert f() == 2\nAssertionError"]


_NONE = "`a` is none: the regex of line 4 matched nothing"


@pytest.mark.parametrize(
    ("returns", "end", "given"),
    [
        ("text", "return a", _NONE),
        ("{ a: text, n: int }", "return { a: a, n: tokens }", _NONE),
        ("{ a: text?, n: int }", "return { a: a, n: tokens }", {"n": 3}),
        ("text?", "return a", None),
        ("text", 'return a else "none of {tokens}"', "none of 3"),
        ("text", "vote a else q", "Go"),
        ("text", 'where tokens > 9 | best by tokens else "short"', "short"),
        ("{ a: text }", 'return { a: a } else { a: "" }', {"a": ""}),
        ("text", "call inner(q) into c | return c", "of Go"),
    ],
)
def test_a_result_that_would_be_none(returns: str, end: str, given: object) -> None:
    text = f"""model llm = "zoo/counting"
program p(q: text) -> {returns} {{
  chat user=q | generate llm temperature=0 max_tokens=3
  extract a = /never/
  {end}
}}
program inner(x: text) -> text {{ let y = x | where y == "" | return y else "of" + " {{x}}" }}"""
    program = qp.parse(text, "p")
    if given is _NONE:
        with pytest.raises(qp.RunError, match=_NONE):
            program(q="Go")
    else:
        assert program(q="Go") == given


@pytest.mark.parametrize(("depth", "left"), [(1, 3), (3, 1)])
def test_a_program_that_calls_itself_goes_as_deep_as_it_says(depth: int, left: int) -> None:
    text = f"""
    program down(n: int) -> int {{
      let m = n - 1
      call down(m) into below depth={depth}
      return if(below == none, m, below)
    }}"""
    assert qp.parse(text)(n=5) == left
    with pytest.raises(qp.QpError, match="comes back here"):
        qp.parse(text.replace(f" depth={depth}", ""))(n=5)
    with pytest.raises(qp.QpError, match="makes a column"):
        qp.parse(text.replace("(m) into below", "(n)"))(n=5)


def test_errors_have_one_frame_of_ours(short: qp.Program[..., Any]) -> None:
    """The user reads where they called, and why it failed."""

    async def awaited() -> None:
        await short.acall("x", n="many")

    for call in (
        lambda: short("x", n="many"),
        lambda: short.run("x", uid=3),
        lambda: asyncio.run(awaited()),
        lambda: short.explain(m=2),
        lambda: short.map(["x"], n="many"),
        lambda: qp.evaluate(short, [{"problem": "x"}], n="many"),
        lambda: qp.parse("program p(q: text) -> text {"),
        lambda: qp.parse(NONE)("x"),
    ):
        with pytest.raises((qp.UserError, qp.QpError, qp.ArgumentError, qp.RunError)) as caught:
            call()
        root = Path(qp.__file__).parents[1]
        ours = [Path(entry.path).relative_to(root) for entry in caught.traceback if root in Path(entry.path).parents]
        assert [path.name for path in ours if path.parts[0] != "tests"] == ["plain_errors.py"]
