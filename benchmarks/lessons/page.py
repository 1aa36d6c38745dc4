"""Runs all exercises and writes what they print into `README.md` of this folder, and the picture of batching beside it.

    python -m benchmarks.lessons.page

On the page, a block that begins with `$ python -m benchmarks.lessons.NAME` has the output of that program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.lessons import batching, kv_memory, prefix_cache, speculation

PAGE = Path(__file__).with_name("README.md")
EXERCISES: dict[str, Callable[[bool], str]] = {
    "batching": partial(batching.exercise, picture=batching.PICTURE),
    "prefix_cache": prefix_cache.exercise,
    "speculation": speculation.exercise,
    "kv_memory": kv_memory.exercise,
}
BLOCK = re.compile(r"(```console\n\$ python -m benchmarks\.lessons\.(\w+)\n)(.*?)(```\n)", re.DOTALL)


def written(text: str, exercises: dict[str, Callable[[bool], str]]) -> str:
    """The page with what each exercise prints."""
    return BLOCK.sub(lambda block: f"{block[1]}{exercises[block[2]](False)}\n{block[4]}", text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(written(PAGE.read_text("utf-8"), EXERCISES), encoding="utf-8")
