"""A noise key depends on everything that a sample means, and on nothing else."""

from __future__ import annotations

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import hash_context, noise_key
from qpdsl.executor.runtime.instance.instance import Instance, Services
from qpdsl.executor.text.context import Context


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
