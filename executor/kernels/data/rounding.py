"""Sizes rounded up, so that few different ones occur and what was made for one of them serves again."""


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is no smaller than `count`."""
    return 1 << max(count - 1, 0).bit_length()
