"""What the results of a run depend on, as digests: an unfinished run is resumed only by the same run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl import __version__
from qpdsl.planner.plan.physical import PhysicalOp
from qpdsl.planner.values.value import Value

if TYPE_CHECKING:
    from qpdsl.dataset.job import Job

Fingerprint = Mapping[str, str]

# What decides the results of a run.
_PACKAGES = tuple(f"qpdsl.{name}" for name in ("grammar", "planner", "executor", "planning", "sources", "dataset"))
_SOURCES = (".py", ".lark")
_LIBRARIES = ("torch", "transformers", "tokenizers", "llguidance")
# How a part of the fingerprint is called in messages, and whether its value says something to the user.
_PARTS = {
    "version": ("the qpdsl version", True),
    "program": ("the program", False),
    "python": ("the Python functions", False),
    "arguments": ("the arguments", False),
    "seed": ("the seed", True),
    "noise": ("the version of the noise", True),
    "plan": ("the plan", True),
    "device": ("the device", True),
    "dtype": ("the dtype", True),
    "policy": ("what the budget decides by", False),
    "kv type": ("the type of the KV cache", True),
    "deterministic": ("`--deterministic`", False),
    "compile": ("`--compile`", False),
    "options": ("what is recorded", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """What a session computes with that results depend on, as `Session` is given it."""

    device: str = "cpu"
    dtype: str | None = None
    kv_type: str | None = None
    router: str | None = None
    deterministic: bool = False
    compile: bool = False


def run_fingerprint(
    job: Job,
    values: Mapping[str, Value],
    computing: Computing = Computing(),
    *,
    models: Mapping[str, str] | None = None,
    python: str = "",
) -> Fingerprint:
    """What the results of a job depend on besides its rows, by part; nothing is loaded for it.

    `values` hold for all rows. `models` are digests of the models by their names (see `model_digests.py`), `python` one
    of the files of Python functions.
    """
    from qpdsl.executor.runtime.instance.noise import NOISE_VERSION
    from qpdsl.planning.routed import routes_exits

    plan = job.plan
    recorded = {"rows": job.with_rows, "candidates": job.with_candidates, "greedy": job.greedy is not None}
    return {
        "version": build(),
        "program": digest([plan.name, str(plan.within), operators((job.written or plan).ops)]),
        **({"python": python} if python else {}),
        "arguments": digest(dict(values)),
        "seed": str(job.seed),
        "noise": str(NOISE_VERSION),
        "plan": job.planned,
        **({"policy": digest(plan.policy.to_json())} if plan.policy is not None else {}),
        "device": computing.device,
        "dtype": computing.dtype or "default",
        **({"kv type": kv_type} if (kv_type := computing.kv_type or plan.kv_type) else {}),
        **({"router": str(computing.router)} if routes_exits(plan) else {}),
        **{mode: "on" for mode in ("deterministic", "compile") if getattr(computing, mode)},
        "options": ", ".join(name for name, on in recorded.items() if on) or "answers",
        **{f"model `{name}`": content for name, content in (models or {}).items()},
    }


def digest(value: object) -> str:
    """A short digest of plain data; the order of a mapping's keys does not count."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def operators(nodes: Iterable[PhysicalOp]) -> list[Any]:
    """What a plan computes, as plain data: equal for equal programs, and with the files that a program read in it."""
    described: list[Any] = []
    for node in nodes:
        values = {field.name: getattr(node.op, field.name) for field in fields(node.op)}
        own = {name: repr(value) for name, value in values.items() if name not in ("span", "body", "arms")}
        inner = [operators(block) for block in (node.body, *node.arms)]
        described.append([type(node.op).__name__, own, inner])
    return described


def changes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """In words, every part in which two fingerprints differ."""
    differences = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        name, is_readable = _PARTS.get(key, (f"the {key}", False))
        values = f" (was {before or 'default'}, is {after or 'default'})" if is_readable else ""
        differences.append(f"{name}{values}")
    return differences


@cache
def build() -> str:
    """What computes: the version of the package, a digest of its sources, and the libraries that it computes with."""
    own = Path(__file__).parents[1]
    folders = [Path(place) for name in _PACKAGES if (spec := find_spec(name)) for place in _places(spec)]
    sources = [*own.glob("*.py"), *(path for folder in folders for path in folder.rglob("*"))]
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"{__version__} build {source_digest(sources)}, {libraries}"


def source_digest(paths: Iterable[Path]) -> str:
    """A digest of the source files among `paths`, by name and content."""
    state = blake2b(digest_size=6)
    for path in sorted(path for path in paths if path.suffix in _SOURCES):
        content = path.read_bytes()
        state.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()


def _places(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())
