"""The figures and series of a model, here or on a server, as its panel on the Engine screen shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from textwrap import wrap

from rich.text import Text

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.plots import FIGURES, LABEL, Plot, fact
from qpdsl.tui.state.engine import Bucket, ModelState
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.state.server import ServerState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette

# From a time of the run to another, None for all of it.
Window = tuple[float, float] | None
_ARMS = ("dense", "rows", "union")
_ROUTER = (*(f"{arm}_steps" for arm in _ARMS), "routed_seconds", "router_seconds", "router_regret")
_MEMORY = ("weight_bytes", "activation_bytes", "resident_bytes", "live_bytes", "cached_bytes", "free_bytes")
# Cells of the bar of keys and values, and the share of live ones from which on memory is short.
_BAR, _SHORT = 16, 0.9
_SHOWN_ELSEWHERE = ("seconds", "steps", "sequences", "capacity", *_MEMORY, *_ROUTER)
# How memory is divided concerns who works on the engine alone.
_INNER = ("running", "pages_leased", "slabs", "slabs_free")
# Seconds less than this are those of looking whether there is something to do.
_LEAST = 1e-5
# An engine's figures that have better words than their names, and of what they are.
_WORDS = {
    "leased_bytes": ("KV leased", ""),
    "wasted_bytes": ("of it empty", ""),
    "cached_tokens": ("from cache", " prompt tokens"),
    "evictions": ("evicted", " pages"),
    "thrashed": ("missed soon", " of these pages"),
    "head_seconds": ("head", " a step"),
    "draft_seconds": ("drafting", " a step"),
    "mask_seconds": ("masks", " a step"),
}


def server_facts(server: ServerState, state: RunState, palette: Palette) -> list[Text]:
    """What is at the server now, what waits, and what was taken so far."""
    latest = server.latest
    facts = [
        fact("in flight", f"{latest.in_flight:,} of {latest.limit:,}, at most {server.most:,}", palette),
        fact("waiting", f"{latest.queued:,} for their turn", palette),
        fact("requests", f"{latest.requests:,}, {latest.replayed:,} replayed", palette),
        fact("sent again", f"{latest.retries:,}", palette),
    ]
    failing = server.failing(state.now)
    if latest.again and state.ended is None:
        waited = "" if failing is None else f", failing for {figures.seconds(failing)}"
        facts += [
            fact("to send again", f"{latest.again:,}{waited}", palette, palette.warn),
            fact("", f"next in {figures.seconds(server.resumes(state.now))}", palette, palette.warn),
            *(Text(line, style=palette.warn) for line in wrap(one_line(latest.why or ""), FIGURES)),
        ]
    sent = "–" if latest.prompt_tokens is None else figures.count(latest.prompt_tokens)
    facts.append(fact("tokens", f"{sent} in, {figures.count(latest.sampled_tokens)} out", palette))
    if latest.prompt_tokens:
        share = figures.share(latest.cached_tokens / latest.prompt_tokens)
        facts.append(fact("prompt cache", f"{share} of it", palette))
    facts.append(fact("rate", f"{figures.count(server.series.rate(state.now, 'decode'))} tok/s", palette))
    begun = state.begun
    if latest.cost:
        most = "" if begun is None or begun.max_cost is None else f" of {begun.max_cost:,g}"
        facts.append(fact("cost", f"{latest.cost:,.6f}".rstrip("0") + most, palette))
    if begun is not None and begun.max_tokens is not None:
        facts.append(fact("at most", f"{begun.max_tokens:,} tokens", palette))
    return facts


def server_plots(server: ServerState, window: Window, palette: Palette) -> list[Plot]:
    """Its series over a window of time, without one over the whole run."""
    series = server.series
    buckets = series.shown(window)
    held = [bucket.sequences / bucket.steps if bucket.steps else 0.0 for bucket in buckets]
    sampled = [bucket.decode / series.width for bucket in buckets]
    sent = [bucket.prefill / series.width for bucket in buckets]
    waiting = [float(bucket.waiting) for bucket in buckets]
    return [
        Plot("sampled tok/s", sampled, palette.good),
        Plot("prompt tok/s", sent, palette.accent),
        Plot(f"in flight of {server.latest.limit:,}", held, palette.second),
        Plot("waiting", waiting, palette.warn),
    ]


def model_facts(model: ModelState, state: RunState, palette: Palette) -> list[Text]:
    """Its memory, what it computed, and what else its engine counts."""
    why_gone = state.why_gone(model.name)
    if why_gone is not None:
        gone = [Text(line, style=palette.warn) for line in wrap(one_line(f"gone: {why_gone}"), FIGURES)]
        return [*gone, *_done(model, palette)]
    model = model.rested if state.rests(model) else model
    latest = model.latest
    facts = [*_kv(model, palette), fact("most held", f"{model.most_pages:,} of {latest.pages:,} pages", palette)]
    prefix = _prefix_share(model, state)
    if prefix is not None:
        facts.append(fact("prefix hits", figures.share(prefix), palette))
    sequences, capacity = latest.others.get("sequences"), latest.others.get("capacity")
    if sequences is not None and capacity:
        facts.append(fact("batch", f"{sequences:.0f}/{capacity:.0f}, {latest.waiting:,} waiting", palette))
    facts += [
        *_done(model, palette),
        fact("preemptions", f"{latest.preemptions:,}", palette),
    ]
    for title, waits in (("first token", model.first_token), ("each token", model.between_tokens)):
        if waits:
            facts.append(fact(title, f"p50 {_milliseconds(waits[0])} p99 {_milliseconds(waits[-1])} ms", palette))
    facts += [fact(name, value, palette) for name, value in _memory(model, state)]
    drafted, accepted = latest.others.get("drafted"), latest.others.get("accepted")
    if drafted and accepted is not None:
        facts.append(fact("acceptance", figures.share(accepted / drafted), palette))
    facts += [fact(name, value, palette) for name, value in _router(latest.others)]
    regrets = [totals.regret for totals in state.operators.values() if totals.regret is not None]
    if regrets:
        facts.append(fact("router regret", f"{sum(regrets):.3f}", palette))
    for name, value in latest.others.items():
        if value > _LEAST and name not in _SHOWN_ELSEWHERE and name not in _INNER:
            facts.append(fact(*_figure(name, value), palette))
    return facts


def _done(model: ModelState, palette: Palette) -> list[Text]:
    """What it computed."""
    return [
        fact("steps", f"{model.steps:,}, {figures.seconds(model.busy)} busy", palette),
        fact("tokens", f"{figures.count(model.prefill_tokens)} in, {figures.count(model.decode_tokens)} out", palette),
    ]


def _kv(model: ModelState, palette: Palette) -> Iterator[Text]:
    """Keys and values: what sequences hold, what the prefix cache alone holds, and what is free."""
    latest = model.latest
    if model.kv is None:
        share = latest.pages_held / latest.pages if latest.pages else 0.0
        text = Text(f"{'KV pages':<{LABEL}} ", style=palette.muted).append(figures.bar(share, _BAR), palette.accent)
        yield text.append(f" {figures.share(share)} held", palette.text)
        return
    live, cached, free = model.kv
    whole = sum(model.kv) or 1.0
    taken, kept = (math.ceil(_BAR * part / whole) for part in (live, cached))
    kept = min(kept, _BAR - taken)
    short = live / whole > _SHORT
    text = Text(f"{'KV':<{LABEL}} ", style=palette.muted)
    text.append("█" * taken, palette.bad if short else palette.accent).append("▒" * kept, palette.second)
    text.append("░" * (_BAR - taken - kept), palette.muted)
    yield text.append(" ⚠ full" if short else "", palette.bad)
    yield fact("█ live", f"{figures.size(live)} of {figures.size(whole)}", palette, palette.bad if short else None)
    yield fact("▒ cached", figures.size(cached), palette)
    yield fact("░ free", figures.size(free), palette)


def _memory(model: ModelState, state: RunState) -> Iterator[tuple[str, str]]:
    """The memory of this model beside its pages, and what the process holds besides all; nothing where not told."""
    others = model.latest.others
    resident = others.get("resident_bytes", 0.0)
    if not resident:
        return
    activations = others.get("activation_bytes", 0.0)
    yield "weights", figures.size(others.get("weight_bytes", 0.0))
    yield "activations", figures.size(activations)
    of_models = sum(
        latest.others.get("weight_bytes", 0.0) + latest.others.get("leased_bytes", 0.0)
        for latest in (other.latest for other in state.models.values() if other.replica == model.replica)
    )
    yield "process", figures.size(resident)
    yield "of it other", figures.size(max(resident - of_models - activations, 0.0))


def _router(others: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """How often each arm computed the head, what choosing took a step, and what better choices would have saved."""
    steps = {arm: others.get(f"{arm}_steps", 0.0) for arm in _ARMS}
    total = sum(steps.values())
    if total:
        yield from ((f"{arm} steps", f"{own:,.0f}, {figures.share(own / total)}") for arm, own in steps.items() if own)
        yield "routing", f"{others.get('router_seconds', 0.0) / total * 1e6:.0f} µs a step"
        if regret := others.get("router_regret"):
            yield "routed regret", figures.seconds(regret)


def _prefix_share(model: ModelState, state: RunState) -> float | None:
    """The share of prompt tokens found in the prefix cache, over the operators of this model; None without any."""
    names = {name for name, id_ in (state.plan.models.items() if state.plan else ()) if id_ == model.name}
    asked = cached = 0
    for line in state.plan.lines if state.plan else ():
        words = line.text.split()
        if len(words) > 1 and words[0] in ("generate", "score") and words[1].strip('"') in names | {model.name}:
            totals = state.totals(line.id)
            asked += totals.prompt_tokens
            cached += totals.cached_tokens
    return cached / asked if asked else None


def model_plots(model: ModelState, window: Window, palette: Palette) -> list[Plot]:
    """Its series over a window of time, without one over the whole run."""
    series = model.series
    buckets = series.shown(window)

    def rates(kind: str) -> list[float]:
        return [getattr(bucket, kind) / series.width for bucket in buckets]

    capacity = model.latest.others.get("capacity")
    batch = f"batch of {capacity:,.0f}" if capacity else "batch"
    return [
        Plot("decode tok/s", rates("decode"), palette.good),
        Plot("prefill tok/s", rates("prefill"), palette.accent),
        Plot(batch, list(map(_occupancy, buckets)), palette.second),
        Plot(f"KV pages of {model.latest.pages:,}", [float(bucket.pages) for bucket in buckets], palette.warn),
    ]


def _occupancy(bucket: Bucket) -> float:
    return bucket.sequences / bucket.steps if bucket.steps else 0.0


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.1f}" if value < 0.0995 else f"{value * 1e3:,.0f}"


def _figure(name: str, value: float) -> tuple[str, str]:
    """A figure of an engine by its name, in its unit, where the name ends in one."""
    words = one_line(name.replace("_", " "))
    word, of = _WORDS.get(name, (words.removesuffix(" bytes").removesuffix(" seconds"), ""))
    if words.endswith(" bytes"):
        return word, figures.size(value) + of
    if words.endswith(" seconds"):
        return word, figures.seconds(value) + of
    return word, (f"{value:,.0f}" if value == int(value) else f"{value:.3f}") + of
