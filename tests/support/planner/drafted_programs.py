"""Programs whose samples are held to constraints and drafted for, made from a seed, and their decode plans."""

from __future__ import annotations

import random
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import VARIANTS, DecodePlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, Strategy, everything
from qpdsl.planner.plan.rule import with_strategies

_HEADER = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
schema Person { name: text(max_length=9), age: int(0..120), tags: [choice("plates", "pens")]? }
"""
_CHOICE = ' as choice("3 * 4", "3")'
_TARGETS = ["", "", " as Person", " as Person", r" as /[a-z]{2,5} is [0-9]+( \* [0-9]+)*\./", _CHOICE]
_OPTIONS = ["temperature=0", "n=2 temperature=0.8", "n=3 temperature=1.0", "n=2 temperature=0.7 top_k=9"]
_PENALTIES = " repetition_penalty=1.3 frequency_penalty=0.4"
_LIMITS = ' without=["* 3", "is"] min_tokens=9'
_DRAFTS = ["", "", "slm", "slm(tokens=3)", "slm(tokens=3, branches=2)", "ngram", "ngram(tokens=2)", "early_exit"]


def drafted_program(seed: int) -> str:
    """The program of a seed: up to two stages that generate."""
    pick = random.Random(seed)
    stages = ["chat user=problem", *_generate(pick)]
    if pick.random() < 0.6:
        stages += ['chat user="Again"', *_generate(pick)]
    drafts = any(stage.startswith("generate") and _CHOICE not in stage for stage in stages)
    head = pick.choice(["", "", " draft slm(tokens=5)", " draft ngram"]) if drafts else ""
    body = "".join(f"  {stage}\n" for stage in stages)
    return f"{_HEADER}program p(problem: text) -> text{head} {{\n{body}}}\n"


def lossy_program(seed: int) -> str:
    """The program of a seed whose stages leave early, or are written with a small model."""
    pick = random.Random(f"lossy {seed}")
    stages = ["chat user=problem", *_lossy(pick), 'chat user="Again"', *_lossy(pick)]
    body = "".join(f"  {stage}\n" for stage in stages)
    return f"{_HEADER}program p(problem: text) -> text {{\n{body}}}\n"


def _lossy(pick: random.Random) -> list[str]:
    target = pick.choice([target for target in _TARGETS if target != _CHOICE])
    stop = pick.choice(["", ' stop="."']) if not target else ""
    number, layer = round(pick.random(), 2), pick.choice(["", ", layer=1", ", layer=3", ", layer=2, rerank=4"])
    by = pick.choice(["", ", by=margin", ", by=entropy"])
    filters = [f"filter(slm, {number}{by})", f"filter(slm, {number}{by})", f"filter(slm, share={number}{by})"]
    contrast = pick.choice(["contrast(slm)", f"contrast(slm, {number})", f"contrast(slm, 0, beta={number})"])
    vias = [*[f"amortized({number}{layer})"] * 3, *filters, contrast, contrast]
    via = pick.choice(vias)
    stop += _more(pick, target)
    stage = f"generate llm {pick.choice(_OPTIONS)}{stop} max_tokens={pick.choice([9, 24])}{target} via {via}"
    return [stage, f"generate llm temperature=1.0 max_tokens=9 via {via}"] if "stop" in stop else [stage]


def _generate(pick: random.Random) -> list[str]:
    target = pick.choice(_TARGETS)
    options = pick.choice(_OPTIONS)
    stop = pick.choice(["", ' stop="."']) if not target else ""
    draft = pick.choice(_DRAFTS) if target != _CHOICE else ""
    clause = f" draft {draft}" if draft else ""
    options += _more(pick, target)
    stage = f"generate llm {options}{stop} max_tokens={pick.choice([9, 24])}{target}{clause}"
    # What stops goes on with another draft.
    return [stage, "generate llm temperature=1.0 max_tokens=9"] if stop else [stage]


def _more(pick: random.Random, target: str) -> str:
    """What changes or masks logits, now and then."""
    penalties = _PENALTIES if target != _CHOICE and pick.random() < 0.2 else ""
    return penalties + (_LIMITS if not target and pick.random() < 0.2 else "")


def decode_plans(op: ops.Generate) -> list[DecodePlan]:
    """Every decode plan of an operator."""
    plans = [DecodePlan.plainest(op)]
    for part in dict.fromkeys(variant.part for variant in VARIANTS):
        names = [variant.name for variant in VARIANTS if variant.part == part and variant.applies(op)]
        plans = [replace(plan, **{part: name}) for plan in plans for name in names]
    return plans


def random_plan(plan: PhysicalPlan, seed: int) -> PhysicalPlan:
    """The plan with some decode plan for each of its operators, prefixes shared or not."""
    pick = random.Random(seed)
    strategies: dict[str, Strategy] = {}
    for node in everything(plan.ops):
        if isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy):
            decode = pick.choice(decode_plans(node.op))
            strategies[node.id] = replace(node.strategy, decode=decode, share=pick.random() < 0.7)
    return with_strategies(plan, strategies)
