"""EXPLAIN ANALYZE: a plan with measurements beside estimates. Totals are over all problems and rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from qpdsl.grammar.printable import printable
from qpdsl.planner.cost.device import SOURCE_WORDS
from qpdsl.planner.cost.estimate import Estimate
from qpdsl.planner.cost.run_figures import (
    ACCOUNTING_RULE,
    FIGURES,
    THOUGHT_TOKENS,
    ExitRouterFigures,
    ModelFigures,
    OperatorFigures,
    RouterFigures,
    RunFigures,
    calls_json,
    operator_seconds,
    thought_json,
    total,
)
from qpdsl.planner.cost.server_times import server_of, waits_of
from qpdsl.planner.cost.statistics import shadow_words
from qpdsl.planner.explain.plan import decided, explain_json, kept, permitted, shown_implementation, tree
from qpdsl.planner.explain.quantities import (
    byte_count,
    calls_words,
    count,
    exit_router_words,
    per_cent,
    plural,
    router_words,
    seconds,
    waits_words,
)
from qpdsl.planner.explain.tree_table import GAP, folded, laid_out
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import Cost, PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.rules import EFFECTS

# What is told of models as it is called, and of filters, with the counts that it has.
_OF_MODELS = (
    *("seconds", "layer_seconds", "head_seconds", "mask_seconds", "draft_seconds"),
    *("prefill_tokens", "cached_tokens", "hit_rate", "decode_tokens", "preemptions", "evictions", "thrashed"),
)
_FILTERED = {"draws": "filter_draws", "decided": "filter_sure", "samples": "filter_samples", "alone": "filter_alone"}
_FILTERED |= {"large_draws": "large_draws", "large_tokens": "large_tokens"}


@dataclass(frozen=True)
class Analysis:
    """One run of a plan: what was measured, and what had been estimated before it ran.

    `implementations`: how each model holds its weights and which code ran its layers, by its id. `routers`: what routed
    the steps of those that were, by their ids; `exit_routers`: what routed their early exits.
    """

    plan: PhysicalPlan
    figures: RunFigures
    estimate: Estimate
    implementations: Mapping[str, str] = field(default_factory=dict)
    routers: Mapping[str, RouterFigures] = field(default_factory=dict)
    exit_routers: Mapping[str, Sequence[ExitRouterFigures]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The summary, the tree and the notes, in lines of at most `width` terminal cells."""
        lines = [line for entry in laid_out(list(self._lines()), width=width) for line in entry]
        ends = [line for note in self._notes() for line in folded(printable(note), width)]
        return "\n".join([*folded(printable(GAP.join(self._summary())), width), *lines, *ends])

    def to_json(self) -> dict[str, Any]:
        """The plan as `explain_json` has it, and on it what was `measured` and `estimated`, with stable keys."""
        figures, estimate = self.figures, self.estimate
        whole = total(self.plan.ops, figures)
        plan = explain_json(self.plan)
        nodes = {node.id: node for node in everything(self.plan.ops)}
        for operator in _operators(plan["operators"]):
            operator["measured"], operator["estimated"] = self._operator_json(nodes[operator["id"]])
        return {
            **plan,
            "measured": {
                "problems": figures.problems,
                "failed": figures.failed,
                "in_flight": figures.in_flight,
                "seconds": figures.seconds,
                "outside_seconds": figures.seconds - figures.forward_seconds,
                "prompt_tokens": whole.prompt_tokens,
                "cached_tokens": whole.cached_tokens,
                "sampled_tokens": whole.sampled_tokens,
                **thought_json(whole.counts),
                "near_ties": whole.count("near_ties"),
                "servers": calls_json(whole.counts),
                "deadlines": {"kept": figures.kept, "of": figures.deadlines} if figures.deadlines else None,
                "kv_peak_bytes": figures.peak_kv,
                "kv_budget_bytes": figures.kv_budget,
                "memory": {name: {"peak": part.peak, "mean": part.mean} for name, part in figures.memory.items()}
                or None,
                "models": {
                    name: {
                        "implementation": self.implementations.get(name),
                        "forwards": model.steps,
                        **{own: getattr(model, own) for own in _OF_MODELS},
                        "router": asdict(self.routers[name]) if name in self.routers else None,
                        "exit_routers": [asdict(router) for router in self.exit_routers.get(name, ())],
                        "first_token": _percentiles(model.first_token),
                        "between_tokens": _percentiles(model.between_tokens),
                        "peak_pages": model.peak_pages,
                        "mean_pages": model.mean_pages,
                    }
                    for name, model in figures.models.items()
                },
            },
            "estimated": {
                "seconds": estimate.seconds,
                "in_flight": estimate.in_flight,
                "kv_bytes": estimate.kv_bytes,
                "source": estimate.source,
                "clock": estimate.clock,
                "device": estimate.device,
            },
            "accounting": ACCOUNTING_RULE,
        }

    @cached_property
    def _seconds(self) -> dict[str, float]:
        return operator_seconds(self.plan, self.figures)

    def _figures_of(self, node: PhysicalOp) -> OperatorFigures:
        return self.figures.operators.get(node.id, OperatorFigures())

    def _summary(self) -> Iterator[str]:
        plan, figures = self.plan, self.figures
        whole = total(plan.ops, figures)
        name = plan.source.name if plan.source.name.endswith(".qp") else plan.name
        yield name.rsplit("/", 1)[-1]
        yield f"{seconds(figures.seconds)} (est {_expected(self.estimate.seconds)})"
        if figures.problems > 1 or figures.failed:
            failed = f", {figures.failed} failed" if figures.failed else ""
            yield f"{count(figures.problems)} problems{failed}, ≤{figures.in_flight} at once"
        if figures.deadlines:
            yield f"{count(figures.kept)} of {plural(figures.deadlines, 'deadline')} kept"
        yield f"{count(whole.prompt_tokens + whole.sampled_tokens)} tokens"
        if thought := whole.count(THOUGHT_TOKENS):
            yield f"{count(thought)} of {count(whole.sampled_tokens)} sampled are thought"
        if figures.peak_kv is not None:
            budget = f" of {byte_count(figures.kv_budget)}" if figures.kv_budget else ""
            yield f"KV peak {byte_count(figures.peak_kv)}{budget}"
        yield from decided(plan)
        yield permitted(plan)
        yield from kept(plan)

    def _lines(self) -> Iterator[list[str]]:
        """Cells: operator, rounds, rows, time, tokens, cached, and how it ran."""
        for text, node in tree(self.plan):
            if node is None:
                yield [text]
                continue
            actual, cost = self._figures_of(node), self.estimate.costs.get(node.id)
            expected = self.estimate.rows.get(node.id, 0.0)
            yield [
                text,
                self._rounds(node),
                _beside(plural(actual.rows_out, "row"), plural(round(expected), "row"), count(round(expected))),
                *self._spent(node, actual, cost),
                self._how(node, actual),
            ]

    def _rounds(self, node: PhysicalOp) -> str:
        if not isinstance(node.op, ops.Repeat | ops.Search) or not node.body:
            return ""
        problems = max(self.figures.problems, 1)
        rounds = self._figures_of(node.body[0]).runs / problems
        shown = f"{rounds:.1f}" if problems > 1 else f"{rounds:.0f}"
        expected = self.estimate.rounds.get(node.id, 0.0)
        expected_shown = f"{expected:.1f}" if problems > 1 else f"{expected:.0f}"
        # Those that carry rows on to their end are among the steps of a search.
        noun = "round" if isinstance(node.op, ops.Repeat) else "expansion" if node.op.turns else "step"
        return f"{shown} {noun}{'' if shown == '1' else 's'}" + (
            f" (est {expected_shown})" if shown != expected_shown else ""
        )

    def _spent(self, node: PhysicalOp, actual: OperatorFigures, cost: Cost | None) -> Iterator[str]:
        """Time with its share of all forwards, tokens, and the cached part of the prompts."""
        if cost is None or node.inside:
            yield from ("", "", "")
            return
        if server_of(node, self.plan) is not None:
            yield f"{seconds(actual.seconds)} waited (est {_expected(cost.seconds)})"
        else:
            spent = self._seconds.get(node.id, 0.0)
            whole = self.figures.forward_seconds
            share = f" {per_cent(spent / whole)}" if whole else ""
            yield f"{seconds(spent)}{share} (est {_expected(cost.seconds)})"
        tokens, expected = actual.prompt_tokens + actual.sampled_tokens, cost.prompt_tokens + cost.sampled_tokens
        yield _beside(f"{count(tokens)} tok", f"{count(expected)} tok", count(expected))
        cached = actual.cached_share
        guess = cost.cached_tokens / cost.prompt_tokens if cost.prompt_tokens else 0.0
        if cached is None:
            yield ""
        else:
            yield _beside(f"cached {per_cent(cached)}", f"cached {per_cent(guess)}", per_cent(guess))

    def _how(self, node: PhysicalOp, actual: OperatorFigures) -> str:
        """How it was implemented, with what came of it.

        The counts of an operator that contains others hold theirs; its own are only those of what runs ahead.
        """
        words: list[str] = []
        if not node.inside:
            words += [shown] if (shown := shown_implementation(node, self.plan)) else []
            if (known := actual.count("steps_known")) and (steps := actual.count("steps")):
                words.append(f"{per_cent(known / steps)} of steps known")
            words += self._steps(actual)
        for effect in EFFECTS.values():
            part, whole = actual.count(effect.part), actual.count(effect.whole)
            if node.inside and not effect.around:
                continue
            if whole:
                words.append(f"{per_cent(part / whole)} of {count(whole)} {effect.words}")
            elif part:
                words.append(f"{plural(part, 'sample')} {effect.words}")
        if not node.inside:
            words += _given_up(actual)
            words += calls_words(actual.counts, of_operator=True)
        return " · ".join(words)

    def _steps(self, actual: OperatorFigures) -> Iterator[str]:
        """How the tokens of a `generate` came about."""
        if thought := actual.count(THOUGHT_TOKENS):
            yield f"{count(thought)} of {count(actual.sampled_tokens)} sampled tokens are thought"
        median, tail = actual.allowed(0.5), actual.allowed(0.95)
        if median is not None and tail is not None:
            yield f"{count(median)} ids allowed (p95 {count(tail)})"
        if "under_bar" in actual.counts:
            yield f"{count(actual.count('under_bar'))} of {count(actual.count('samples'))} ended under the bar"
        if (forced := actual.count("forced")) and actual.sampled_tokens:
            yield f"{per_cent(forced / actual.sampled_tokens)} forced"
        if drafted := actual.count("drafted"):
            accepted = per_cent(actual.count("accepted") / drafted)
            yield f"{accepted} of {count(drafted)} drafted accepted"
        routed = {arm: actual.count(f"{arm}_steps") for arm in ("dense", "rows", "union")}
        if steps := sum(routed.values()):
            yield "head " + ", ".join(f"{arm} {per_cent(own / steps)}" for arm, own in routed.items() if own)
        if (rounds := actual.count("rounds")) and actual.count("drafted"):
            yield f"{actual.count('draws') / rounds:.2f} tokens a round"
        yield from _exits(actual)
        yield from _filtered(actual)
        if contrasted := actual.count("contrast_draws"):
            alone = per_cent(actual.count("contrast_alone") / contrasted)
            yield f"{plural(contrasted, 'token')} contrasted, {alone} with one plausible id"
        if shadowed := actual.count("shadowed"):
            yield shadow_words(shadowed, actual.count("differed"))

    def _notes(self) -> Iterator[str]:
        figures, estimate = self.figures, self.estimate
        outside = max(figures.seconds - figures.forward_seconds, 0.0)
        whole = total(self.plan.ops, figures)
        ties = whole.count("near_ties")
        share = f" ({per_cent(outside / figures.seconds)})" if figures.seconds else ""
        yield f"{seconds(outside)}{share} outside forwards"
        if ties:
            yield f"{plural(ties, 'token')} that rounding could have changed (near ties)"
        if self.plan.has_remote():
            yield f"servers: {', '.join(calls_words(whole.counts)) or 'nothing was asked'}"
            for name, own in waits_of(self.plan, figures).items():
                yield f"{name}: {waits_words(own)}"
        yield from (f"{name}: {words}" for name, words in self.implementations.items())
        for name, model in figures.models.items():
            if parts := list(_parts(model)):
                yield f"{name}: {', '.join(parts)}"
            if model.first_token:
                waits = [f"first token {_waits(model.first_token)}"]
                waits += [f"then each {_waits(model.between_tokens)}"] if model.between_tokens else []
                yield f"{name}: {', '.join(waits)} (p50, p95, p99)"
            if model.cached_tokens:
                tokens = count(model.cached_tokens + model.prefill_tokens)
                yield f"{name}: {per_cent(model.hit_rate)} of {tokens} prompt tokens were in the prefix cache"
            if name in self.routers:
                yield f"{name}: {router_words(self.routers[name])}"
            for router in self.exit_routers.get(name, ()):
                yield f"{name}: {exit_router_words(router)}"
            if model.preemptions or model.thrashed:
                yield (
                    f"{name}: {plural(model.preemptions, 'preemption')}, "
                    f"{plural(model.thrashed, 'page')} evicted and missed"
                )
        yield from _memory(figures)
        device = SOURCE_WORDS[estimate.device]
        if self.plan.has_remote():
            device = "servers as earlier runs saw them" if estimate.seconds is not None else "a server was not measured"
        clock = "" if estimate.clock is None else f", seconds times {estimate.clock:.2g} by earlier runs"
        yield f"estimates: {estimate.source}; {device}{clock}"
        yield ACCOUNTING_RULE
        if self.plan.has_remote():
            yield "of models on servers: how long operators waited, those that run side by side each for itself"

    def _operator_json(self, node: PhysicalOp) -> tuple[dict[str, Any], dict[str, Any]]:
        actual, cost = self._figures_of(node), self.estimate.costs.get(node.id)
        measured: dict[str, Any] = {
            **{name: getattr(actual, name) for name in FIGURES},
            "seconds": self._seconds.get(node.id),
            "waited_seconds": actual.seconds,
            "counts": {name: value for name, value in actual.counts.items() if value},
        }
        if isinstance(node.op, ops.Generate):
            measured["steps"] = {
                **{name: actual.count(name) for name in ("draws", "rounds", "forced", "drafted", "accepted")},
                "allowed_median": actual.allowed(0.5),
                "allowed_p95": actual.allowed(0.95),
            }
            if isinstance(node.op.via, ops.Amortized):
                names = ("exits", "refined", "skipped", "late", "full")
                measured["exits"] = {name: actual.count(name) for name in names}
            elif isinstance(node.op.via, ops.Filter):
                measured["filter"] = {name: actual.count(counted) for name, counted in _FILTERED.items()}
            elif isinstance(node.op.via, ops.Contrast):
                measured["contrast"] = {name: actual.count(f"contrast_{name}") for name in ("draws", "alone")}
            if actual.count("shadowed"):
                measured["shadow"] = {name: actual.count(name) for name in ("shadowed", "differed")}
        estimated: dict[str, Any] = {"rows_out": self.estimate.rows.get(node.id)}
        for name in ("prompt_tokens", "cached_tokens", "sampled_tokens", "seconds"):
            estimated[name] = None if cost is None else getattr(cost, name)
        return measured, estimated


def _expected(value: float | None) -> str:
    return "not measured" if value is None else seconds(value)


def _given_up(actual: OperatorFigures) -> Iterator[str]:
    """The thoughts that a vote broke off; how long they would have become nobody knows."""
    if thoughts := actual.count("thoughts_given_up"):
        tokens = actual.count("thought_tokens_given_up")
        yield f"{plural(thoughts, 'thought')} broken off after {plural(tokens, 'token')}"


def _exits(actual: OperatorFigures) -> Iterator[str]:
    """What leaving the model early came to."""
    exits, refined, full = (actual.count(name) for name in ("exits", "refined", "full"))
    if full:
        yield f"{per_cent(full / (exits + refined + full))} of {count(exits + refined + full)} draws left the exit out"
    if not exits + refined:
        return
    yield f"{per_cent(refined / (exits + refined))} of {count(exits + refined)} draws refined"
    if skipped := actual.count("skipped"):
        yield f"{count(skipped)} layers of tokens skipped"
    if late := actual.count("late"):
        yield f"{plural(late, 'token')} finished late"


def _filtered(actual: OperatorFigures) -> Iterator[str]:
    """What a small model spared a large one."""
    sure, draws = actual.count("filter_sure"), actual.count("filter_draws")
    if not draws:
        return
    decided = sure + actual.count("large_draws")
    yield f"small model decided {per_cent(sure / decided) if decided else '0%'} of {count(decided)} tokens"
    alone, samples = actual.count("filter_alone"), actual.count("filter_samples")
    yield f"{count(alone)} of {plural(samples, 'sample')} without the large model"
    if computed := actual.count("large_tokens"):
        yield f"it computed {plural(computed, 'token')} with what it caught up on"


def _parts(model: ModelFigures) -> Iterator[str]:
    """What the parts of a model's forwards took, and their shares; nothing where nobody measured them."""
    parts = {
        "layers": model.layer_seconds,
        "head": model.head_seconds,
        "masks": model.mask_seconds,
        "drafts": model.draft_seconds,
    }
    if model.seconds and model.head_seconds:
        yield from (
            f"{part} {seconds(time)} ({per_cent(time / model.seconds)})" for part, time in parts.items() if time
        )


def _memory(figures: RunFigures) -> Iterator[str]:
    """The parts of the memory: the peak of each over the steps, and its mean."""
    names = {"weights": "weights", "activations": "activations", "kv": "KV", "other": "other"}
    parts = {words: figures.memory[name] for name, words in names.items() if name in figures.memory}
    if parts:
        sizes = ", ".join(f"{words} {byte_count(part.peak)} ({byte_count(part.mean)})" for words, part in parts.items())
        blocks = "".join(
            f"; {name}: {count(model.peak_pages)} ({count(model.mean_pages)}) of {count(model.pages)} KV pages"
            for name, model in figures.models.items()
        )
        yield f"memory, peak (mean of the steps): {sizes}{blocks}"


def _waits(percentiles: tuple[float, ...]) -> str:
    return " ".join(seconds(wait) for wait in percentiles)


def _percentiles(waits: tuple[float, ...]) -> dict[str, float] | None:
    return dict(zip(("p50", "p95", "p99"), waits, strict=True)) if waits else None


def _operators(operators: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for operator in operators:
        yield operator
        yield from _operators(operator["body"])
        for arm in operator["arms"]:
            yield from _operators(arm)


def _beside(actual: str, expected: str, short: str) -> str:
    return actual if actual == expected else f"{actual} (est {short})"
