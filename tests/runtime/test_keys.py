"""A noise key hangs on everything that a sample means, and on nothing else."""

from __future__ import annotations

from qpdsl.executor.runtime.keys import hash_arguments, noise_key


def test_every_part_changes_the_key() -> None:
    arguments = hash_arguments({"problem": "x", "n": 3})
    keys = [
        noise_key(0, arguments, 1, (), (0,)),
        noise_key(1, arguments, 1, (), (0,)),
        noise_key(0, hash_arguments({"problem": "x", "n": 4}), 1, (), (0,)),
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
    assert noise_key(7, hash_arguments({"b": 1, "a": "é"}), 3, (1, 2), (0, 5)) == 6083774613596655881


def test_the_order_of_arguments_does_not_count() -> None:
    assert hash_arguments({"a": 1, "b": 2}) == hash_arguments({"b": 2, "a": 1})
