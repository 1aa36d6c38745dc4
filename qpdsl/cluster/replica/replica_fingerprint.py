"""What the bits of a replica's results depend on, besides the rows: replicas that differ in it are not alike.

Torch and BLAS pick their code by what a processor can do, and sum in another order with wider vectors or with matrix
units. The number of cores, the clock and the memory change no bit (`docs/architecture.md`, same seed, same tokens).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

from qpdsl.executor.checkpoint.model_digest import location_digest, tokens_digest
from qpdsl.executor.requests.errors import EngineError
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.runs.store.fingerprint import build

# Features of a processor by which libraries choose how they compute and in what.
_FEATURES = ("avx2", "fma", "f16c", "avx512", "avxvnni", "avxneconvert", "avxifma", "amx", "bf16", "i8mm", "sve", "sme")
_WORDS = {
    "build": "the build of qpdsl and its libraries",
    "processor": "the processor's features",
    "vectors": "how wide torch computes",
    "device": "the device",
    "python": "the Python functions",
}


def replica_fingerprint(models: Iterable[str], device: str, python: str) -> dict[str, str]:
    """The parts by name, for models that are loaded; `python` is the digest of the Python functions."""
    import torch

    return {
        "build": build(),
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "device": _device(device),
        **({"python": python} if python else {}),
        **{f"model {model}": _digest(model) for model in dict.fromkeys(models)},
    }


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """In words, every part in which two fingerprints differ, with both values where they are short."""
    found = []
    for part in dict.fromkeys([*first, *other]):
        before, after = first.get(part, "none"), other.get(part, "none")
        if before == after:
            continue
        if part == "processor":
            before, after = _only(before, after), _only(after, before)
        kind, _, name = part.partition(" ")
        what = f"the files of the model `{name}`" if kind == "model" else _WORDS.get(part, part)
        found.append(what if kind == "model" or part == "python" else f"{what} ({before} and {after})")
    return found


def _processor() -> str:
    """The architecture, and the features that count, sorted."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    own = sorted(name for name, there in features.items() if there and name.startswith(_FEATURES))
    return " ".join((platform.machine(), *own))


def _device(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    import torch

    properties = torch.cuda.get_device_properties(torch.device(device))
    return f"{properties.name} ({properties.major}.{properties.minor}), CUDA {torch.version.cuda}"


def _digest(model: str) -> str:
    """Of a model on a server that of its tokenizer: what the server computes on is not known here."""
    digest = tokens_digest if is_remote(model) else location_digest
    try:
        places = [place for place, _ in own_places(model)]
        return " ".join(digest(place) for place in places) if is_remote(model) else location_digest(*places)
    except (EngineError, OSError) as error:
        return f"unknown: {error}"


def _only(own: str, other: str) -> str:
    """The words of one that the other lacks."""
    return " ".join(word for word in own.split() if word not in other.split()) or "none of these"
