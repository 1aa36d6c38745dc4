"""The PTX that makes numbers of words, run in NumPy: every word there is, against what the formats say."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest
import torch

from qpdsl.executor.kernels.triton import stored_numbers

Words = npt.NDArray[np.uint32]


def halves(x: Words) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(x).view(np.float16).astype(np.float64)


def packed(x: npt.NDArray[np.float64]) -> Words:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint32)


def e4m3(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return torch.from_numpy(bits).view(torch.float8_e4m3fn).double().numpy()


def prmt(a: Words, b: Words, take: Words) -> Words:
    there = np.concatenate((a[:, None].view(np.uint8), b[:, None].view(np.uint8)), axis=1)
    places = [int(take[0]) >> (4 * i) & 7 for i in range(4)]
    return np.ascontiguousarray(there[:, places]).view(np.uint32)[:, 0]


DO = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << b,
    "shr.b32": lambda a, b: a >> b,
    "prmt.b32": prmt,
    "cvt.u16.u32": lambda a: a & 0xFFFF,
    "sub.f16x2": lambda a, b: packed(halves(a) - halves(b)),
    "cvt.rn.f16x2.e4m3x2": lambda a: packed(e4m3(a.astype(np.uint16).view(np.uint8)).ravel()),
}


def run(name: str, results: int, *given: Words) -> list[npt.NDArray[np.float64]]:
    """What the PTX called `name` writes, as pairs of float16 numbers [n, 2] for each of its results."""
    known = {f"${results + i}": words for i, words in enumerate(given)}
    for line in getattr(stored_numbers, name).value.strip("{} ").split(";"):
        if line.strip() and ".reg" not in line:
            found = re.fullmatch(r"(\S+) (\S+), (.*)", line.strip())
            assert found
            sources = [
                known[source] if source in known else np.full_like(given[0], int(source, 0))
                for source in found[3].split(", ")
            ]
            known[found[2]] = DO[found[1]](*sources)
    return [halves(known[f"${i}"]).reshape(-1, 2) for i in range(results)]


def every() -> tuple[npt.NDArray[np.uint16], Words]:
    """Pairs of words uint16 [n, 2], with every word in both places, and the pairs as registers."""
    low = np.arange(1 << 16, dtype=np.uint16)
    pairs = np.stack((low, np.roll(low, 12345)), axis=1)
    return pairs, np.ascontiguousarray(pairs).view(np.uint32)[:, 0]


@pytest.mark.parametrize(("place", "name"), [(0, "EVEN"), (1, "ODD")])
@pytest.mark.parametrize("kind", ["INT8", "FP8", "HARD_FP8"])
def test_bytes_of_words_become_their_numbers(kind: str, place: int, name: str) -> None:
    pairs, registers = every()
    stored = (pairs >> (8 * place)).astype(np.uint8)
    wanted = stored.view(np.int8).astype(np.float64) if kind == "INT8" else e4m3(stored)
    keep = ~np.isnan(wanted)
    (made,) = run(f"_{kind}_{name}", 1, registers)
    assert np.array_equal(made[keep], (wanted / (256 if kind == "FP8" else 1))[keep])


def test_four_bytes_of_a_key_become_their_numbers() -> None:
    _, registers = every()
    made = np.concatenate(run("_INT8_KEYS", 2, registers), axis=1)
    assert np.array_equal(made, registers[:, None].view(np.int8).astype(np.float64))
