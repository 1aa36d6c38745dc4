"""A choice between plans: the candidates, the cost of each, and why one is not permitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qpdsl.planner.cost.device import DeviceSource
from qpdsl.planner.optimize.kv_shares import MemorySplit
from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.physical import PhysicalPlan, Tolerance
from qpdsl.planner.plan.rule import Knob

# Digits of latency that count: estimates are not that good.
_DIGITS = 3
# λ of a program that says nothing of `prefer`: half and half.
LAMBDA = 0.5
_ORDER = {"exact": 0, "epsilon": 1, "lossy": 2, "loss": 2}


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A plan with the seconds that it is expected to take.

    `loss` is the share of draws whose token changes, all tokens before it the same, None where nobody measured it;
    `epsilon` the most by which its logits were seen to differ, None where they do not.
    """

    plan: PhysicalPlan
    seconds: float
    loss: float | None = 0.0
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Considered:
    """One value of one knob, the others as they were chosen: `seconds` for the whole load, `cost` the objective C.

    `measured` says what is known of a value that changes results, and where from.

    `verdict` says why it is not the plan: "no better" where it comes to the same, empty where it costs more. `chosen`
    marks what the plan has.
    """

    knob: Knob
    value: str
    equivalence: Equivalence
    seconds: float
    loss: float | None
    cost: float
    verdict: str
    chosen: bool
    measured: str = ""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A plan and how it was chosen.

    `ruled_seconds` is the estimate of the plan as the rules left it, `seconds` that of the chosen one, both for
    `problems`; `weight` is λ; `tried` counts the estimates, which took `planning_seconds`. `levels` are the ways
    to split the KV memory in the order of their worth. `device` says where the device's figures come from.
    """

    plan: PhysicalPlan
    ruled_seconds: float
    seconds: float
    weight: float
    problems: int
    tried: int
    planning_seconds: float
    levels: tuple[MemorySplit, ...]
    device: DeviceSource
    _consider: Callable[[], tuple[Considered, ...]] = field(repr=False, compare=False)

    @property
    def considered(self) -> tuple[Considered, ...]:
        """Every knob at every value, estimated when it is asked for: a run shows none of them."""
        return self._consider()


def objective(candidate: PlanCandidate, exact_seconds: float, prefer: float | None) -> float:
    """C of a candidate; `prefer` is the program's λ. A loss that nobody knows counts as whole, and not at all where the
    plan is judged by its ε.

    Latency is rounded before it is weighed, so that what comes to the same does so under any λ.
    """
    weight = LAMBDA if prefer is None else prefer
    relative = round(candidate.seconds / exact_seconds, _DIGITS) if exact_seconds else 1.0
    unknown = 1.0 if candidate.epsilon is None else 0.0
    return weight * relative + (1 - weight) * (unknown if candidate.loss is None else candidate.loss)


def refusal(candidate: PlanCandidate, within: Tolerance) -> str | None:
    """Why a plan is outside of what the program permits; None where it is not.

    Under `epsilon(ε)` logits must have been seen to differ by no more than ε; under `loss(x)` the share of draws that
    change must have been measured and be no more than x. A program that is lossy by its `via` alone permits that and
    nothing more.
    """
    plan, epsilon, loss, bound = candidate.plan, candidate.epsilon, candidate.loss, within.bound
    if _ORDER[plan.equivalence] > _ORDER[within.level]:
        return f"outside `within {within}`"
    if epsilon is None and loss == 0.0:
        return None
    if bound is None:
        return "the program permits no more than its own `via`"
    # Written so that what is no number is refused.
    if within.level == "epsilon":
        assert epsilon is not None
        return None if epsilon <= bound else f"outside `within {within}`: logits differ by up to {epsilon:.2g}"
    if loss is None:
        return f"outside `within {within}`: nobody measured what share of draws it changes"
    return None if loss <= bound else f"outside `within {within}`: {loss:.2g} of draws change"
