"""What a run on a GPU says of the estimate, and what to do next: a line for each thing that was to be found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from benchmarks.gpu.estimate.cases import Case, Estimate, Way, attention_case, estimate
from benchmarks.gpu.estimate.devices import Device, device_of, devices
from benchmarks.gpu.estimate.shapes import SHAPES, KVKind
from benchmarks.gpu.estimate.step import Batch

# Of the roofline: a whole step of a model of 8B; decode attention over bfloat16.
GOAL = 0.80
ATTENTION_GOAL = 0.85
# How far attention may be from its estimate, in shares of the copy's bandwidth.
_ATTENTION_MARGIN = 0.10
# What a replayed step may have more of than its launches on paper: copies of results and the like.
_MORE_LAUNCHES = 8
Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`right` None: it was not measured. `found` is what was, `then` what to do next, empty where nothing is."""

    about: str
    right: bool | None
    found: str
    then: str = ""

    def line(self) -> str:
        word = {True: "right", False: "**wrong**", None: "not measured"}[self.right]
        return f"- {self.about}: {word}; {self.found}" + (f". Next: {self.then}" if self.then else "")


def verdicts(results: Results) -> list[Verdict]:
    """In the order of the run's parts. `results`: what `gpu.json` holds."""
    device = measured_device(results)
    made = [*_checks(results), *_bits(results), *_launches(results)]
    if device is None:
        name = (results.get("machine") or {}).get("device", "this device")
        made.append(Verdict("the estimate", None, f"there is no estimate for {name}"))
    else:
        made += [*_copy(results, device), *_attention(results, device), *_steps(results, device)]
    return [*made, *_replays(results), *_undone(results)]


def measured_device(results: Results) -> Device | None:
    """The device that was measured, with its copy's bandwidth; None where there is no estimate for it."""
    device = device_of((results.get("machine") or {}).get("device", ""))
    if device is None:
        return None
    copies = [part["copy_gb_per_s"] for part in results.values() if isinstance(part, dict) and "copy_gb_per_s" in part]
    return device.measured(max(copies) * 1e9 if copies else None)


def measured_steps(results: Results, device: str) -> dict[str, float]:
    """By the case's name, the best share of the roofline that a step reached, where the run was on this device."""
    there = measured_device(results)
    best: dict[str, float] = {}
    if there is not None and there.name == device:
        for row in _rows(results, "steps", "decode"):
            if row["variant"] != "deterministic":
                name = _case(row).name
                best[name] = max(best.get(name, 0.0), row["of_roofline"])
    return best


def _checks(results: Results) -> list[Verdict]:
    """Whether what runs there is right at all, a line for each part with checks."""
    made = []
    for part in ("product", "faults", "checks"):
        checks = _rows(results, part, "checks")
        wrong = [check.get("check") or f"{check['kernel']}, {check['case']}" for check in checks if not check["passed"]]
        if not checks:
            made.append(Verdict(f"the part `{part}`", None, "no check was made"))
        elif wrong:
            found = f"{len(wrong)} of {len(checks)} checks fail: {'; '.join(wrong[:4])}"
            made.append(Verdict(f"the part `{part}`", False, found, "mend these before any figure is believed"))
        else:
            made.append(Verdict(f"the part `{part}`", True, f"{len(checks)} checks hold"))
    return made


def _bits(results: Results) -> list[Verdict]:
    """Whether the library's products sum every row of a fixed shape alike, which determinism takes for granted."""
    rows = _rows(results, "rows", "products")
    if not rows:
        return [Verdict("rows of a product are summed alike", None, "no product was tried")]
    wrong = [f"{row['model']} {row['product']}" for row in rows if row["rows_that_differ"]]
    if not wrong:
        return [Verdict("rows of a product are summed alike", True, f"in all {len(rows)} products tried")]
    then = "give these products to a kernel of the engine's own in deterministic mode"
    return [Verdict("rows of a product are summed alike", False, f"not in {', '.join(wrong)}", then)]


def _launches(results: Results) -> list[Verdict]:
    """Whether a replayed step has the launches that the estimate counts."""
    made = []
    device = measured_device(results) or devices()["H100"]
    for row in _rows(results, "profile", "steps"):
        if row["way"] not in ("modules", "stack", "overlapped") or row["model"] not in SHAPES:
            continue
        expected = estimate(_case(row), row["way"], device).launches
        right = row["launches"] <= expected + _MORE_LAUNCHES
        found = f"{row['launches']} where {expected} were counted"
        then = (
            "" if right else f"look at the longest of the profile that no launch of the list explains: {row['first']}"
        )
        made.append(Verdict(f"launches of a step of {_case(row).name}", right, found, then))
    return made


def _copy(results: Results, device: Device) -> list[Verdict]:
    if device.copy is None:
        return [Verdict("the copy's bandwidth", None, "no copy was timed")]
    share = device.copy / device.bandwidth
    found = f"{device.copy / 1e12:.2f} TB/s, {share:.0%} of the data sheet's"
    then = (
        "" if 0.86 <= share <= 0.95 else "see whether the device was throttled or shared; all shares below hang on it"
    )
    return [Verdict("the copy's bandwidth", 0.86 <= share <= 0.95, found, then)]


def _attention(results: Results, device: Device) -> list[Verdict]:
    """Decode attention at 64 sequences of 4,096 tokens, by what keys and values are kept as."""
    made = []
    for row in _rows(results, "kernels", "decode"):
        if (row["sequences"], row["context"], row["window"]) != (64, 4096, None) or row["model"] not in SHAPES:
            continue
        expected = attention_case(cast(KVKind, row["kv"]), device, model=row["model"])
        if expected is None:
            continue
        right = abs(row["of_copy"] - expected.share) <= _ATTENTION_MARGIN
        found = f"{row['of_copy']:.0%} of the copy where {expected.share:.0%} were expected"
        then = ""
        if row["of_copy"] < expected.share - _ATTENTION_MARGIN:
            then = (
                "count stalls by `ncu` (long scoreboard: more blocks ahead; not selected or math: fewer instructions)"
            )
        elif row["kv"] == "plain" and row["of_copy"] < ATTENTION_GOAL:
            then = f"`--tune`, as the goal is {ATTENTION_GOAL:.0%}"
        made.append(Verdict(f"decode attention, {row['model']} {row['kv']}", right, found, then))
    return made


def _steps(results: Results, device: Device) -> list[Verdict]:
    """Each decode step that was measured: whether it lies in the range, and whether it reaches the goal."""
    made = []
    for row in _rows(results, "steps", "decode"):
        if row["variant"] == "deterministic" or row["model"] not in SHAPES or row["way"] == "eager":
            continue
        way = cast(Way, row["way"])
        expected = estimate(_case(row), way, device)
        right = expected.least <= row["of_roofline"] <= expected.most
        found = (
            f"{row['of_roofline']:.0%} of the roofline where {expected.share:.0%} ({expected.least:.0%} to "
            f"{expected.most:.0%}) were expected, {row['ms']:.2f} ms"
        )
        if row["model"] == "8B":
            found += f"; the goal of {GOAL:.0%} is {'reached' if row['of_roofline'] >= GOAL else '**missed**'}"
        made.append(Verdict(f"a step of {_case(row).name}, {way}", right, found, _next(row, expected, results)))
    return made


def _next(row: dict[str, Any], expected: Estimate, results: Results) -> str:
    """What to do about a step that is slower than it should be, by the profile of its like."""
    if row["of_roofline"] >= expected.least and (row["model"] != "8B" or row["of_roofline"] >= GOAL):
        return ""
    like = [step for step in _rows(results, "profile", "steps") if step["model"] == row["model"]]
    near = min(like, key=lambda step: abs(step["sequences"] - row["sequences"]), default=None)
    if near is None:
        return "profile it"
    idle = 1 - near["busy_ms"] / near["ms"]
    if idle > 0.15:
        return f"the device is idle for {idle:.0%} of a step: the host, or gaps between launches"
    return f"the device is busy; the longest kernel is {near['first']}"


def _replays(results: Results) -> list[Verdict]:
    found = [row for row in _rows(results, "steps", "search") if row["replayed"] is not None]
    if not found:
        return [Verdict("steps of a search are replayed", None, "no search was run with graphs")]
    row = found[0]
    right = row["replayed"] >= 0.8
    then = "" if right else "round the shapes of steps more coarsely"
    text = f"{row['replayed']:.0%} of {row['steps']} steps, {row['graphs']} graphs"
    return [Verdict("steps of a search are replayed", right, text, then)]


def _undone(results: Results) -> list[Verdict]:
    """Cases that broke or were not begun."""
    made = []
    for name, part in results.items():
        if isinstance(part, dict):
            for failed in part.get("failed", []):
                made.append(
                    Verdict(f"`{name}`", False, f"{failed['case']} broke: {failed['why']}", "read its traceback")
                )
            if left := part.get("not_begun"):
                made.append(Verdict(f"`{name}`", None, f"no time for {'; '.join(left)}"))
            if part.get("ended"):
                made.append(Verdict(f"`{name}`", False, part["ended"], f"run it alone: `--only {name}`"))
    return made


def _case(row: dict[str, Any]) -> Case:
    return Case(row["model"], Batch(row["sequences"], row["context"], cast(KVKind, row.get("kv", "plain"))))


def _rows(results: Results, part: str, table: str) -> list[dict[str, Any]]:
    return list((results.get(part) or {}).get(table, []))
