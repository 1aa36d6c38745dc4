"""What the parts of the GPU benchmark have found so far, as markdown. Any table may be missing."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.estimate.verdicts import ATTENTION_GOAL
from benchmarks.gpu.estimate.verdicts import GOAL as STEP_GOAL

Case = dict[str, Any]


def checks(data: Case) -> str:
    """A line for each kernel: how many cases hold, and the largest share of a bound that an error reached."""
    results = data.get("checks", [])
    lines = [
        "## Kernels against their twins",
        "",
        "| kernel | cases | hold | error over bound |",
        "|---|---:|---:|---:|",
    ]
    for kernel in dict.fromkeys(check["kernel"] for check in results):
        mine = [check for check in results if check["kernel"] == kernel]
        worst = max(
            (check["error"] / check["bound"] for check in mine if check["bound"] and check["error"]), default=0.0
        )
        lines.append(f"| {kernel} | {len(mine)} | {sum(check['passed'] for check in mine)} | {worst:.2f} |")
    wrong = [
        f"- {check['kernel']}, {check['case']}: {check['why'] or check['error']}"
        for check in results
        if not check["passed"]
    ]
    return "\n".join([*lines, "", *wrong, trouble(data)]).strip()


def kernels(data: Case) -> str:
    """The tables that there are, and what was met of the goal."""
    if "copy_gb_per_s" not in data:
        return trouble(data)
    large = [case for case in data.get("decode", []) if case["mib"] >= 64]
    lines = [
        "## Kernels",
        "",
        f"Copy bandwidth {data['copy_gb_per_s']} GB/s (read and written), bfloat16 matrix product "
        f"{data.get('matrix_tflop_per_s')} TFLOP/s, both measured in this run.",
    ]
    if large:
        reached = min(case["of_copy"] for case in large)
        lines += [
            "",
            f"Decode attention that moves 64 MiB or more reaches at least {reached:.0%} of the copy bandwidth; the "
            f"goal is {ATTENTION_GOAL:.0%}: {'met' if reached >= ATTENTION_GOAL else '**missed**'}.",
        ]
    for name in ("decode", "ragged", "prefill", "cascade", "store", "sample"):
        if name in data:
            lines += ["", f"### {name}", "", *table(data[name])]
    for case in data.get("tuning", []):
        lines += ["", f"### tuning {case['model']} {case['sequences']}×{case['context']}: {case['chosen_us']} µs"]
        lines += ["", *table(case["best"])]
    return "\n".join([*lines, "", trouble(data)]).strip()


def profile(data: Case) -> str:
    """Where the time of each step goes, and its longest kernels."""
    lines = ["## Where the time of a step goes", "", *table(data.get("steps", []))]
    for case in data.get("steps", []):
        own = ("model", "way", "sequences", "context")
        mine = [row for row in data.get("kernels", []) if all(row[key] == case[key] for key in own)]
        shown = [{key: value for key, value in row.items() if key not in own} for row in mine]
        title = f"### {case['model']}, {case['way']}, {case['sequences']} × {case['context']}"
        lines += ["", title, "", *table(shown)]
    return "\n".join([*lines, "", trouble(data)]).strip()


def rows(data: Case) -> str:
    """The products of which a row's bits depend on its place, on the others or on the run."""
    lines = ["## Bits of the library's products", "", *table(data.get("products", []))]
    return "\n".join([*lines, "", trouble(data)]).strip()


def engine(data: Case) -> str:
    """The tables that there are, and what was met of the goal."""
    decodes = data.get("decode", [])
    lines = [f"## The engine{'' if decodes else ': checks'}"]
    if decodes:
        best: dict[tuple[Any, ...], float] = {}
        for case in decodes:
            if case["variant"] != "deterministic":
                key = (case["model"], case["kv"], case["sequences"], case["context"])
                best[key] = max(best.get(key, 0.0), case["of_roofline"])
        missed = [
            f"{model} {kv} {batch} × {context}"
            for (model, kv, batch, context), share in best.items()
            if share < STEP_GOAL
        ]
        verdict = "met" if not missed else f"**missed** by {', '.join(missed)}"
        lines += [
            "",
            f"Whole decode steps; the roofline is weights and KV over {data['copy_gb_per_s']} GB/s, the copy bandwidth "
            f"measured in this run. The goal is {STEP_GOAL:.0%} of it in the fastest variant: {verdict}.",
            "",
            "Variants: `modules`: transformers' layers, captured; `stack`: the engine's own layers, captured; "
            "`overlapped`: and the host's work under the next step, as the engine runs by default; `deterministic`: "
            "steps of fixed size.",
        ]
    costs = [
        f"{case['model']} {case['sequences']} × {case['context']}: {case['ms'] / plain['ms']:.2f}"
        for case in decodes
        for plain in decodes
        if case["variant"] == "deterministic"
        and plain["variant"] == "overlapped"
        and all(plain[key] == case[key] for key in ("model", "kv", "sequences", "context"))
    ]
    if costs:
        lines += ["", f"A deterministic step takes, in steps without: {'; '.join(costs)}."]
    for name in ("checks", "decode", "search", "generate"):
        if name in data:
            lines += ["", f"### {name}", "", *table(data[name])]
    return "\n".join([*lines, "", trouble(data)]).strip()


def table(cases: list[Case]) -> list[str]:
    """Rows of equal keys as markdown; nothing where there are none."""
    if not cases:
        return []
    lines = ["| " + " | ".join(cases[0]) + " |", "|" + "---:|" * len(cases[0])]
    return lines + ["| " + " | ".join(str(value) for value in case.values()) + " |" for case in cases]


def trouble(data: Case) -> str:
    """What failed and what was not begun, as markdown; nothing where all was done."""
    lines = [f"**Failed:** {case['case']}: {case['why']}" for case in data["failed"]]
    if data["not_begun"]:
        lines.append(f"Not begun, as time was up: {'; '.join(data['not_begun'])}.")
    return "\n\n".join(lines)
