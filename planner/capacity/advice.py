"""What to try next on a piece of hardware, as sentences: what it is that bounds the model there, and what moves it."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.capacity.architecture import NUMBER_BYTES
from qpdsl.planner.capacity.hardware import GIB, Hardware
from qpdsl.planner.capacity.memory_parts import UTILIZATION, MemoryParts
from qpdsl.planner.capacity.roofline import Held, crossover, decode_step

_MOST_DEVICES = 1024


def advice(held: Held, hardware: Hardware, parts: tuple[MemoryParts, ...], context: int) -> Iterator[str]:
    """For sequences of so many tokens; `parts` has the memory with each type of keys and values, the usual one first.

    What bounds a step is judged at the batch that fills the memory.
    """
    usual = parts[0]
    if not usual.fits:
        yield from _too_large(held, hardware, usual)
        return
    users = usual.users[context]
    if not users:
        longest = int(usual.kv // held.architecture.token_kv_bytes(held.kv_number_bytes))
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


def _too_large(held: Held, hardware: Hardware, parts: MemoryParts) -> Iterator[str]:
    missing = -parts.kv / GIB
    yield f"the weights do not fit: {missing:,.1f} GiB are missing"
    for count in range(hardware.count + 1, _MOST_DEVICES):
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
