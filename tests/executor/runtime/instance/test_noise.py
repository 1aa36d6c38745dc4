"""A noise key depends on everything that a sample means, and on nothing else."""

from __future__ import annotations

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import hash_context, noise_key
from qpdsl.executor.runtime.instance.instance import Instance, Services
from qpdsl.executor.text.context import Context
from tests.support.executor.programs import HEADER, compiled, run_all


def test_every_part_changes_the_key() -> None:
    context = hash_context(Context(turns=(("user", "x"),)))
    keys = [
        noise_key(0, context, 1, (), (0,)),
        noise_key(1, context, 1, (), (0,)),
        noise_key(0, hash_context(Context(turns=(("user", "y"),))), 1, (), (0,)),
        noise_key(0, context, 2, (), (0,)),
        noise_key(0, context, 1, (0,), (0,)),
        noise_key(0, context, 1, (), (1,)),
        noise_key(0, context, 1, (), (0, 0)),
        noise_key(0, context, 1, (0, 0), (0,)),
        noise_key(0, context, 10, (), ()),
        noise_key(0, context, 1, (), (10,)),
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 64 for key in keys)


def test_keys_are_fixed_for_good() -> None:
    """A change here changes every published result for the same seed."""
    assert noise_key(7, hash_context(Context(turns=(("user", "é"),))), 3, (1, 2), (0, 5)) == 8844042161572578327


def test_contexts_are_told_apart_by_roles_and_texts_alone() -> None:
    contexts = [
        Context(turns=(("user", "ab"),)),
        Context(turns=(("system", "ab"),)),
        Context(turns=(("user", "a"), ("user", "b"))),
        Context(prompt=(("ab", True),)),
        Context(prompt=(("ab ", True),)),
    ]
    assert len({hash_context(context) for context in contexts}) == len(contexts)
    pieces = Context(prompt=(("a", True), ("b", False)), opening=1, grown=True)
    assert hash_context(pieces) == hash_context(Context(prompt=(("ab", True),)))


def test_an_instance_hands_ordinal_context_round_seed_and_path_on() -> None:
    services = Services(PagedEngine(), {}, {}, EventStream())
    first, second = (Instance("", services, {}, seed) for seed in (0, 1))
    here, there = (Context(turns=(("user", text),)) for text in "xy")
    keys = [*first.keys(1, here, [(0,), (1,)]), *first.keys(2, here, [(0,)]), *first.keys(1, there, [(0,)])]
    keys += second.keys(1, here, [(0,)])
    first.rounds = (3,)
    keys += first.keys(1, here, [(0,)])
    assert len(set(keys)) == len(keys)


def test_what_is_random_is_of_the_row_the_round_and_the_call_and_moves_no_token() -> None:
    def of(stages: str, seed: int = 0) -> list[tuple[object, ...]]:
        plan = compiled(f"{HEADER}program p(q: text) -> text {{\n chat user=q\n{stages}\n}}")
        (result,) = run_all(plan, [{"q": "Mia has 3 boxes."}], seed=seed)
        return [tuple(row.columns.get(name) for name in ("a", "b", "text")) for row in result.rows]

    draw = " generate llm n={} temperature=0.8 max_tokens=4\n let a = random()\n {} "
    four, eight = of(draw.format(4, "let b = random()")), of(draw.format(8, "let b = random()"))
    assert four == eight[:4] and len({number for row in eight for number in row[:2]}) == 16
    assert [text for _, _, text in of(f" let c = random()\n{draw.format(4, '')}")] == [text for _, _, text in four]
    assert of(draw.format(4, ""), seed=1) != of(draw.format(4, ""))
    rounds = of(" let b = 0.0\n repeat 3 { let a = random() | let b = b + a }")
    assert rounds[0][1] != 3 * float(str(rounds[0][0]))
    numbers = [float(str(row[0])) for row in of(" split 2000\n let a = random()")]
    assert all(0 < number < 1 for number in numbers) and abs(sum(numbers) / 2000 - 0.5) < 4 * 0.289 / 2000**0.5
