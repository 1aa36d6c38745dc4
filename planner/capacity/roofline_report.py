"""Everything that `qpdsl profile --roofline` says of a model, as data, and what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qpdsl.planner.capacity.architecture import NUMBER_BYTES, Architecture
from qpdsl.planner.capacity.hardware import GIB, Hardware
from qpdsl.planner.capacity.roofline import (
    UTILIZATION,
    Bound,
    HeldModel,
    MemoryParts,
    crossover,
    decode_step,
    memory_parts,
    prefill_seconds,
)

CONTEXTS = (2048, 4096, 32768)
BATCHES = (1, 4, 16, 64, 256)
DEFAULT_KV_TYPES = ("fp16", "fp8", "int4")
# The context that the advice is for, where it is one of those asked for.
_USUAL_CONTEXT = 4096
_MAX_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class FullBatch:
    """A step with as many sequences of `context` tokens as fit; `prefill` is the least seconds of such a prompt."""

    context: int
    batch: int
    intensity: float
    seconds: float
    bound: Bound
    prefill: float

    @property
    def rate(self) -> float:
        """Tokens a second of all sequences."""
        return self.batch / self.seconds


@dataclass(frozen=True, slots=True)
class OnHardware:
    """The model on one piece of hardware.

    `parts` has one entry for each type of keys and values. From a `ridge` of so many operations a byte on arithmetic
    bounds a step; `crossovers` has the smallest batch that reaches it by context (0: none), None where none does.
    `full` are the steps that fill the memory, with the first type of keys and values, and `alone` the seconds of a step
    of one sequence without context.
    """

    hardware: Hardware
    parts: tuple[MemoryParts, ...]
    ridge: float
    crossovers: dict[int, int | None]
    full: tuple[FullBatch, ...]
    alone: float
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RooflineReport:
    """A model and the hardware it was asked for.

    `token_bytes` and `sequence_bytes` are the keys and values of one token in all layers, and all that is kept of a
    whole sequence, by their type and, for the latter, context. `intensities` are the operations for each byte that a
    step reads, by batch and context (0: none).
    """

    architecture: Architecture
    weight_type: str
    weight_bytes: float
    contexts: tuple[int, ...]
    kv_types: tuple[str, ...]
    token_bytes: dict[str, float]
    sequence_bytes: dict[str, dict[int, float]]
    intensities: dict[int, dict[int, float]]
    on: tuple[OnHardware, ...]


def roofline_report(
    architecture: Architecture,
    hardware: Sequence[Hardware],
    weight_type: str,
    weight_bytes: float,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    kv_types: Sequence[str] = DEFAULT_KV_TYPES,
) -> RooflineReport:
    """The report for weights of so many bytes in all; the first of `kv_types` is the one of the roofline."""
    usual = NUMBER_BYTES[kv_types[0]]
    held = HeldModel(architecture, weight_bytes / architecture.parameters, weight_type, usual)
    seen = (0, *contexts)
    return RooflineReport(
        architecture,
        weight_type,
        weight_bytes,
        tuple(contexts),
        tuple(kv_types),
        {kind: architecture.token_kv_bytes(NUMBER_BYTES[kind]) for kind in kv_types},
        {
            kind: {context: architecture.kv_bytes(context, NUMBER_BYTES[kind]) for context in contexts}
            for kind in kv_types
        },
        {batch: {context: decode_step(held, batch, context).intensity for context in seen} for batch in batches},
        tuple(_on(held, one, weight_bytes, tuple(contexts), tuple(kv_types)) for one in hardware),
    )


def _on(
    held: HeldModel, hardware: Hardware, weight_bytes: float, contexts: tuple[int, ...], kv_types: tuple[str, ...]
) -> OnHardware:
    parts = tuple(
        memory_parts(held.architecture, hardware, weight_bytes, kind, NUMBER_BYTES[kind], contexts) for kind in kv_types
    )
    full = [
        _full(held, hardware, context, users) for context, users in parts[0].users.items() if users and parts[0].fits
    ]
    kind = held.number_type
    usual = _USUAL_CONTEXT if _USUAL_CONTEXT in contexts else contexts[0]
    return OnHardware(
        hardware,
        parts,
        hardware.ridge(kind),
        {context: crossover(held, hardware, context) for context in (0, *contexts)},
        tuple(full),
        decode_step(held, 1, 0).seconds(hardware, kind),
        tuple(advice(held, hardware, parts, usual)),
    )


def _full(held: HeldModel, hardware: Hardware, context: int, users: int) -> FullBatch:
    step = decode_step(held, users, context)
    return FullBatch(
        context,
        users,
        step.intensity,
        step.seconds(hardware, held.number_type),
        step.bound(hardware, held.number_type),
        prefill_seconds(held, hardware, context),
    )


def advice(held: HeldModel, hardware: Hardware, parts: tuple[MemoryParts, ...], context: int) -> Iterator[str]:
    """For sequences of so many tokens; `parts` has the memory with each type of keys and values, the usual one first.

    What bounds a step is judged at the batch that fills the memory.
    """
    usual = parts[0]
    if not usual.fits:
        yield from _too_large(held, hardware, usual)
        return
    users = usual.users[context]
    if not users:
        left = max(usual.kv - held.architecture.state_bytes, 0.0)
        longest = int(left // held.architecture.token_kv_bytes(held.kv_number_bytes))
        yield f"no sequence of {context:,} tokens fits beside the weights; about {longest:,} tokens do"
    more = {part.kv_type: part.users[context] for part in parts[1:] if part.users[context] > users}
    step = decode_step(held, max(users, 1), context)
    turn = crossover(held, hardware, context)
    if step.bound(hardware, held.number_type) == "compute":
        yield (
            f"arithmetic bounds a full batch of {users:,}: from {turn:,} sequences on, more of them only wait for one "
            "another. Fewer tokens help (searches that stop early, smaller models), and arithmetic in fewer bits; "
            "drafts do not"
        )
        return
    share = step.weight_bytes / (step.weight_bytes + step.kv_bytes)
    never = "no batch would turn that" if turn is None else f"{turn:,} would turn that, if they fitted"
    yield f"memory bounds a full batch of {users:,}: {never}"
    if share >= 0.5:
        yield (
            f"{share:.0%} of what a step reads are weights: fewer bits for them, more sequences at once, or drafts, "
            "which one reading of the weights checks together"
        )
    else:
        yield (
            f"{1 - share:.0%} of what a step reads are keys and values: fewer bits for them, prefixes that sequences "
            "share, or shorter contexts"
        )
    if more:
        listed = ", ".join(f"{count:,} with {kv_type}" for kv_type, count in more.items())
        yield f"keys and values in fewer bits make room for more: {listed}"


def _too_large(held: HeldModel, hardware: Hardware, parts: MemoryParts) -> Iterator[str]:
    missing = -parts.kv / GIB
    yield f"the weights do not fit: {missing:,.1f} GiB are missing"
    for count in range(hardware.count + 1, _MAX_DEVICES):
        memory = hardware.memory / hardware.count * count
        if memory - max(memory * (1 - UTILIZATION), parts.activations) > parts.weights:
            base = hardware.name.partition("x ")[2] if hardware.count > 1 else hardware.name
            yield f'{count} of them hold it: `--hardware "{count}x {base}"`'
            break
    for number_type in ("fp8", "int4"):
        size = held.architecture.parameters * NUMBER_BYTES[number_type]
        if size < parts.weights + parts.kv:
            yield f"with weights of {number_type} they take {size / GIB:,.1f} GiB and fit: `--weights {number_type}`"
            break
