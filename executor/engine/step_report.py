"""The report of a step: tokens, pages, waste, evictions."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.engine.scheduler import Scheduler


@dataclass(slots=True)
class StepSeconds:
    """Where the time of a step went, but for the layers."""

    masks: float = 0.0
    head: float = 0.0
    drafts: float = 0.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of one model did, and how its memory stands after it.

    The step computed `prefill_tokens` and `decode_tokens` of `sequences`, of at most `capacity`, in `seconds`;
    `waiting` and `running` count sequences after it. `pages_held` are in use, by sequences or the prefix tree, out
    of `pages_leased` now and `pages` if it had the memory to itself; `slabs` are leased by the model, `slabs_free` are
    not leased; `wasted_bytes` of `leased_bytes` hold no token (room in pages, free pages, ends of slabs). So far:
    `preemptions`; `cached_tokens` of prompts, found in the prefix tree; `evictions` of pages from it, of which
    `thrashed` were missed soon after.

    Of `seconds`, the step took `draft_seconds` to propose tokens, stood still for `mask_seconds` until masks were
    filled, and spent `head_seconds` on what is read off hidden states: head, draws, log-probabilities (on a GPU, of the
    device's time).
    """

    model: str
    sequences: int
    capacity: int
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    running: int
    pages_held: int
    pages_leased: int
    pages: int
    slabs: int
    slabs_free: int
    leased_bytes: int
    wasted_bytes: int
    preemptions: int
    cached_tokens: int
    evictions: int
    thrashed: int
    mask_seconds: float = 0.0
    head_seconds: float = 0.0
    draft_seconds: float = 0.0


def report(
    model: str,
    scheduler: Scheduler,
    sequences: int,
    prefill_tokens: int,
    decode_tokens: int,
    seconds: float,
    spent: StepSeconds,
) -> StepReport:
    """The report of a step of `scheduler` that has just ended."""
    memory, pool, tree = scheduler.memory, scheduler.memory.pool, scheduler.memory.tree
    return StepReport(
        model,
        sequences,
        scheduler.max_sequences,
        seconds,
        prefill_tokens,
        decode_tokens,
        len(scheduler.waiting),
        len(scheduler.running),
        pool.held,
        pool.leased,
        pool.capacity,
        pool.slabs,
        pool.arena.free,
        pool.leased_bytes,
        memory.wasted_bytes(scheduler.running),
        scheduler.preemptions,
        memory.hits,
        tree.evictions,
        tree.thrashed,
        spent.masks,
        spent.head,
        spent.drafts,
    )
