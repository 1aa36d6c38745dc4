"""A noise key depends on everything that a sample means, and on nothing else."""

from __future__ import annotations

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.instance import Instance, Services
from qpdsl.executor.runtime.instance.noise import hash_arguments, noise_key


def test_every_part_changes_the_key() -> None:
    arguments = hash_arguments(["x", 3])
    keys = [
        noise_key(0, arguments, 1, (), (0,)),
        noise_key(1, arguments, 1, (), (0,)),
        noise_key(0, hash_arguments(["x", 4]), 1, (), (0,)),
        noise_key(0, arguments, 2, (), (0,)),
        noise_key(0, arguments, 1, (0,), (0,)),
        noise_key(0, arguments, 1, (), (1,)),
        noise_key(0, arguments, 1, (), (0, 0)),
        noise_key(0, arguments, 1, (0, 0), (0,)),
        noise_key(0, arguments, 10, (), ()),
        noise_key(0, arguments, 1, (), (10,)),
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 64 for key in keys)


def test_keys_are_fixed_for_good() -> None:
    """A change here changes every published result for the same seed."""
    assert noise_key(7, hash_arguments(["é", 1]), 3, (1, 2), (0, 5)) == 2161414530621298641


def test_arguments_are_told_apart_by_place_and_type() -> None:
    digests = {hash_arguments(values) for values in (["a", "b"], ["b", "a"], ["ab"], [1], ["1"], [1.0], [True], [None])}
    assert len(digests) == 8


def test_an_instance_hands_stage_round_seed_and_path_on() -> None:
    services = Services(PagedEngine(), {}, {}, EventStream())
    first, second = (Instance("", services, {}, seed, b"") for seed in (0, 1))
    keys = [first.key(1, (0,)), first.key(2, (0,)), first.key(1, (1,)), second.key(1, (0,))]
    first.rounds = (3,)
    keys.append(first.key(1, (0,)))
    assert len(set(keys)) == len(keys)
