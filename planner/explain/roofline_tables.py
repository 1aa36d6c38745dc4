"""What `qpdsl profile --roofline` says of a model, as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from qpdsl.grammar.printable import printable
from qpdsl.planner.capacity.roofline import BLOCK, STEP_TOKENS, UTILIZATION
from qpdsl.planner.capacity.roofline_report import OnHardware, RooflineReport
from qpdsl.planner.explain.quantities import byte_count, count, seconds
from qpdsl.planner.explain.tree_table import aligned, folded


def roofline_text(report: RooflineReport, width: int | None = None) -> str:
    """The model, its users on each hardware, the operations for each byte, what bounds it, and what to try."""
    lines = [
        *_model(report),
        "",
        *_memory(report),
        "",
        *_intensities(report),
        "",
        *_bounds(report),
        "",
        "what to try next",
    ]
    for on in report.on:
        for number, sentence in enumerate(on.advice):
            lines += folded(
                sentence if number else f"{on.hardware.name}: {sentence}", width, "    " if number else "  ", "    "
            )
    lines += ["", "sources"]
    for on in report.on:
        lines += folded(f"{on.hardware.name}: {on.hardware.source}", width, "  ", "    ")
    return "\n".join(printable(line) for line in lines)


def roofline_json(report: RooflineReport) -> dict[str, Any]:
    """The same as data, with stable keys; amounts in bytes, rates a second."""
    architecture = report.architecture
    return {
        "model": {
            **asdict(architecture),
            "layers": architecture.layers,
            "active_parameters": architecture.active,
        },
        "weight_type": report.weight_type,
        "weight_bytes": report.weight_bytes,
        "kv_token_bytes": report.token_bytes,
        "kv_sequence_bytes": _keyed(report.sequence_bytes),
        "block_tokens": BLOCK,
        "intensities": _keyed(report.intensities),
        "hardware": [
            {
                **asdict(on.hardware),
                "ridge": on.ridge,
                "crossovers": _keyed(on.crossovers),
                "step_seconds_alone": on.alone,
                "memory_parts": [{**asdict(part), "users": _keyed(part.users)} for part in on.parts],
                "full_batches": [{**asdict(full), "tokens_per_second": full.rate} for full in on.full],
                "advice": list(on.advice),
            }
            for on in report.on
        ],
    }


def _keyed(table: Any) -> Any:
    """Tables by batch or context as JSON has them: with texts for keys."""
    return {str(key): _keyed(value) for key, value in table.items()} if isinstance(table, dict) else table


def _model(report: RooflineReport) -> Iterator[str]:
    architecture = report.architecture
    active = f", {count(architecture.active)} for each token" if architecture.experts is not None else ""
    yield f"{architecture.name}: {count(architecture.parameters)} parameters{active}"
    grouped = architecture.heads // architecture.kv_heads
    saved = f", 1/{grouped} of what a head of their own for each would take" if grouped > 1 else ""
    yield (
        f"  {architecture.layers} layers, {architecture.heads} heads on {architecture.kv_heads} "
        f"of keys and values, {architecture.head_dim} wide{saved}"
    )
    windows = [window for window in architecture.windows if window is not None]
    if windows:
        yield f"  {len(windows)} of the layers keep the last {max(windows):,} tokens only"
    if architecture.unattending:
        yield f"  {architecture.unattending} of the layers keep no keys and values"
    if architecture.state_bytes:
        yield f"  states: {byte_count(architecture.state_bytes)} a sequence, however long it is"
    yield f"  weights {byte_count(report.weight_bytes)}, computed as {report.weight_type}"
    for kind, size in report.token_bytes.items():
        lengths = ", ".join(
            f"{byte_count(whole)} at {_length(context)}" for context, whole in report.sequence_bytes[kind].items()
        )
        yield f"  keys and values {kind}: {byte_count(size)} a token; {lengths}"


def _memory(report: RooflineReport) -> Iterator[str]:
    yield f"memory, and sequences that fit at once ({1 - UTILIZATION:.0%} kept back for activations and other)"
    heads = ["hardware", "memory", "weights", "activations", "other", "KV", "KV type", "blocks"]
    table = [[*heads, *map(_length, report.contexts)]]
    for on in report.on:
        for number, part in enumerate(on.parts):
            if number:
                common = [""] * 6
            else:
                sizes = (part.memory, part.weights, part.activations, part.other)
                kv = byte_count(part.kv) if part.fits else f"−{byte_count(-part.kv)}"
                common = [on.hardware.name, *map(byte_count, sizes), kv]
            users = [f"{part.users[context]:,}" for context in report.contexts]
            table.append([*common, part.kv_type, f"{part.blocks:,}", *users])
    yield from _figures(table, words=(0,))
    yield f"  activations: of a step of {STEP_TOKENS:,} tokens; a block: {BLOCK} tokens in all layers"
    if any(window is not None for window in report.architecture.windows):
        yield "  a layer with a window holds its window; qpdsl's own pages hold every token in every layer"


def _intensities(report: RooflineReport) -> Iterator[str]:
    yield f"operations for each byte that a step reads (ops:byte), keys and values {report.kv_types[0]}"
    columns = ["no context", *map(_length, report.contexts)]
    table = [["batch", *columns]]
    for batch, by_context in report.intensities.items():
        table.append([f"{batch:,}", *(f"{value:,.1f}" for value in by_context.values())])
    yield from _figures(table)
    table = [["", "turns at", *columns]]
    for on in report.on:
        turns = ["never" if turn is None else f"{turn:,}" for turn in on.crossovers.values()]
        table.append([on.hardware.name, f"{on.ridge:,.0f}", *turns])
    yield "the batch from which on arithmetic bounds a step, and not memory, by context"
    yield from _figures(table, words=(0,))


def _bounds(report: RooflineReport) -> Iterator[str]:
    yield f"a batch that fills the memory, at best (keys and values {report.kv_types[0]})"
    heads = ["hardware", "alone", "context", "batch", "ops:byte", "step", "tok/s each", "tok/s", "bound by", "prompt"]
    table = [heads]
    for on in report.on:
        table += list(_full(on))
    yield from _figures(table, words=(0, 8))
    yield "  alone: a step of one sequence without context; prompt: computing one of that length, by itself"


def _full(on: OnHardware) -> Iterator[list[str]]:
    if not on.full:
        yield [on.hardware.name, "does not fit" if not on.parts[0].fits else seconds(on.alone), *[""] * 8]
    for number, full in enumerate(on.full):
        yield [
            *(("", "") if number else (on.hardware.name, seconds(on.alone))),
            _length(full.context),
            f"{full.batch:,}",
            f"{full.intensity:,.0f}",
            seconds(full.seconds),
            f"{1 / full.seconds:,.1f}",
            count(full.rate),
            full.bound,
            seconds(full.prefill),
        ]


def _length(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else f"{tokens:,}"


def _figures(table: Sequence[Sequence[str]], words: Sequence[int] = ()) -> Iterator[str]:
    """Columns of figures, which end under each other, those of words aside."""
    return (f"  {line}" for line in aligned(table, [at for at in range(len(table[0])) if at not in words]))
