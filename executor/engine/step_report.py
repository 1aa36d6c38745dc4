"""The report of a step: tokens, pages, waste, evictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.executor.engine.memory.budget import Footprint
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.routed_head import RoutedHead
from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.routing import ARMS


@dataclass(slots=True)
class StepSeconds:
    """Where the time of a step went, but for the layers."""

    masks: float = 0.0
    head: float = 0.0
    drafts: float = 0.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of one model did, and how its memory stands after it.

    The step computed `prefill_tokens` and `decode_tokens` of `sequences`, of at most `capacity`, in `seconds`. Where
    steps overlap, these count from the end of the step before, and the report comes when the next step is launched:
    what stands after the step stands after that.

    `waiting` and `running` count sequences after it. `pages_held` are in use, by sequences or the prefix tree, out of
    `pages_leased` now and `pages` if it had the memory to itself; `slabs` are leased by the model, `slabs_free` are not
    leased; `wasted_bytes` of `leased_bytes` hold no token (room in pages, free pages, ends of slabs). So far:
    `preemptions`; `cached_tokens` of prompts, found in the prefix tree; `evictions` of pages from it, of which
    `thrashed` were missed soon after.

    Of `seconds`, the process had a processor for `worked_seconds`: for fewer where the machine had other work. The step
    took `draft_seconds` to propose tokens, stood still for `mask_seconds` until masks were
    filled, and spent `head_seconds` on what is read off hidden states: head, draws, log-probabilities (on a GPU, of the
    device's time). Of the steps so far a router had `dense_steps`, `rows_steps` and `union_steps` computed so, which
    took `routed_seconds` in the head and `router_seconds` to choose; `choice` is that of this step, `RouteChoice`, with
    its context at its end. The waits for tokens that the step ended are
    counted by bucket (see `latencies.py`): `first_waits` for the first tokens of samples, `waits` for the others.

    Of the memory for pages sequences hold `live_bytes` and the prefix tree alone `cached_bytes`, and `free_bytes` can
    be taken at once. Sequences and the prefix tree hold `state_bytes` of states.

    In memory there are `weight_bytes` of the model's weights, `activation_bytes` of this step's rows on their way
    through a layer, and `resident_bytes` in all, of every model and everything else (see `budget.py`).
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
    worked_seconds: float = 0.0
    mask_seconds: float = 0.0
    head_seconds: float = 0.0
    draft_seconds: float = 0.0
    dense_steps: int = 0
    rows_steps: int = 0
    union_steps: int = 0
    routed_seconds: float = 0.0
    router_seconds: float = 0.0
    first_waits: Mapping[int, int] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)
    weight_bytes: int = 0
    activation_bytes: int = 0
    resident_bytes: int = 0
    state_bytes: int = 0
    live_bytes: int = 0
    cached_bytes: int = 0
    free_bytes: int = 0
    choice: tuple[str | float, ...] = ()


def report(
    model: str,
    scheduler: Scheduler,
    sequences: int,
    prefill_tokens: int,
    decode_tokens: int,
    seconds: float,
    worked_seconds: float,
    spent: StepSeconds,
    waits: Waits,
    routed: RoutedHead | None = None,
    footprint: Footprint | None = None,
) -> StepReport:
    """The report of a step of `scheduler` that has just ended."""
    memory, pool, tree = scheduler.memory, scheduler.memory.pool, scheduler.memory.tree
    taken = footprint or Footprint()
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
        memory.leased_bytes,
        memory.wasted_bytes(scheduler.running),
        scheduler.preemptions,
        memory.hits,
        tree.evictions,
        tree.thrashed,
        worked_seconds,
        spent.masks,
        spent.head,
        spent.drafts,
        *_routed(routed),
        waits.first,
        waits.between,
        taken.weights,
        taken.activations,
        taken.resident,
        memory.state_bytes,
        memory.live_bytes,
        memory.cached_bytes,
        memory.free_bytes,
        () if routed is None or (choice := routed.choice) is None else (*choice[:-1], *choice.context),
    )


def _routed(head: RoutedHead | None) -> tuple[int, int, int, float, float]:
    routers = [] if head is None else list(head.routers.values())
    dense, rows, union = (sum(router.steps[arm] for router in routers) for arm in ARMS)
    seconds, spent = sum(router.seconds for router in routers), sum(router.spent for router in routers)
    return dense, rows, union, seconds, spent
