"""What the results of a run depend on, as digests: an unfinished run is resumed only by the same run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl import __version__
from qpdsl.executor.checkpoint.model_digest import location_digest, tokens_digest
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.session.planning import routes_exits
from qpdsl.session.setting import declared
from qpdsl.session.settings import SessionSettings

if TYPE_CHECKING:
    from qpdsl.runs.job import Job
    from qpdsl.session.session import Session

Fingerprint = Mapping[str, str]

# What decides the results of a run.
_PACKAGES = tuple(f"qpdsl.{name}" for name in ("grammar", "planner", "executor", "session", "runs"))
_SOURCES = (".py", ".lark")
_USUAL = SessionSettings()
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
    "options": ("what is recorded", True),
}


def run_fingerprint(
    job: Job,
    values: Mapping[str, Value],
    settings: SessionSettings = _USUAL,
    *,
    models: Mapping[str, str] | None = None,
    python: str = "",
) -> Fingerprint:
    """What the results of a job depend on besides its rows, by part; nothing is loaded for it.

    `values` hold for all rows, `settings` are those of the session. `models` are digests of the models by their names
    (see `model_digests`), `python` one of the files of Python functions.
    """
    from qpdsl.executor.runtime.instance.candidates import NOISE_VERSION

    plan = job.plan
    recorded = {"rows": job.with_rows, "candidates": job.with_candidates, "greedy": job.greedy is not None}
    recorded |= {"samples": job.contents is not None, "trajectories": job.trajectories}
    return {
        "version": build(),
        "program": digest([plan.name, str(plan.within), operators((job.written or plan).ops)]),
        **({"python": python} if python else {}),
        "arguments": digest(dict(values)),
        "seed": str(job.seed),
        "noise": str(NOISE_VERSION),
        "plan": job.planned,
        **({"policy": digest(plan.policy.to_json())} if plan.policy is not None else {}),
        **_computing(plan, settings),
        "options": ", ".join(name for name, on in recorded.items() if on) or "answers",
        **{f"model `{name}`": content for name, content in (models or {}).items()},
    }


def _computing(plan: PhysicalPlan, settings: SessionSettings) -> dict[str, str]:
    """The settings that results depend on, by their part; those at their defaults are left out, as far as they were."""
    parts = {"device": settings.device, "dtype": settings.dtype or "default"}
    if (settings.device, settings.dtype) == ("cpu", "bfloat16"):
        from qpdsl.executor.kernels.llvm.compile import multiplies_pairs

        # Such processors round what they multiply.
        parts["dtype"] += " by AVX512-BF16" if multiplies_pairs() else ""
    for name, known, default in declared(SessionSettings):
        value = getattr(settings, name)
        if known.fingerprint is not None and known.fingerprint not in parts and value != default:
            parts[known.fingerprint] = "on" if value is True else str(value)
    if plan.kv_type is not None:
        parts.setdefault("kv type", plan.kv_type)
    if routes_exits(plan):
        parts.setdefault("router", str(settings.router))
    else:
        parts.pop("router", None)
    return parts


def digest(value: object) -> str:
    """A short digest of plain data; the order of a mapping's keys does not count."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def operators(nodes: Iterable[PhysicalOp]) -> list[Any]:
    """What a plan computes, as plain data: equal for equal programs, and with the files that a program read in it."""
    described: list[Any] = []
    for node in nodes:
        # Where a word stands in the text is nothing of what it computes.
        computing = {field.name: getattr(node.op, field.name) for field in fields(node.op) if field.compare}
        own = {name: repr(value) for name, value in computing.items() if name not in ("body", "arms")}
        inner = [operators(block) for block in (node.body, *node.arms)]
        described.append([type(node.op).__name__, own, inner])
    return described


def changes(old: Fingerprint, new: Fingerprint, arguments: Sequence[str] = ()) -> list[str]:
    """In words, every part in which two fingerprints differ; `arguments` are such words of each argument."""
    differences: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if key == "arguments" and arguments:
            differences += arguments
            continue
        name, is_readable = _PARTS.get(key, (f"the {key}", False))
        values = f" (was {before or 'default'}, is {after or 'default'})" if is_readable else ""
        differences.append(f"{name}{values}")
    return differences


@cache
def build() -> str:
    """What computes: the version of the package, a digest of its sources, and the libraries that it computes with."""
    own = Path(__file__).parents[2]
    folders = [Path(place) for name in _PACKAGES if (spec := find_spec(name)) for place in _places(spec)]
    sources = [*own.glob("*.py"), *(path for folder in folders for path in folder.rglob("*"))]
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"{__version__} build {source_digest(sources)}, {libraries}"


def source_digest(paths: Iterable[Path]) -> str:
    """A digest of the source files among `paths`, by name and content: wherever they lie, as in a checkout."""
    state = blake2b(digest_size=6)
    for name, content in sorted((path.name, path.read_bytes()) for path in paths if path.suffix in _SOURCES):
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()


def _places(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())


def model_digests(models: Mapping[str, str], session: Callable[[], Session]) -> dict[str, str]:
    """A digest of every model, by its name in the program.

    `session` opens one with the models loaded. It is called where files alone do not tell: the version of a hub model
    is known only once it is in the cache, and what a server is once it is asked. Raises ModelError, also for a folder
    that is missing.
    """
    places = {name: [place for place, _ in own_places(model)] for name, model in models.items()}
    opened = session() if any(map(is_remote, models.values())) or not _are_here(places) else None
    digests = {}
    for name, own in places.items():
        if is_remote(models[name]):
            assert opened is not None
            tokens = " ".join(tokens_digest(place) for place in own)
            digests[name] = " ".join(filter(None, (opened.server_digest(models[name]), tokens)))
        else:
            digests[name] = location_digest(*own)
    return digests


def _are_here(places: Mapping[str, list[Path | str]]) -> bool:
    return all(isinstance(place, Path) and place.exists() for own in places.values() for place in own)
