"""Keys and values in eight and four bits against the model's own type: errors, other tokens, how much more fits.

    python -m benchmarks.engine.kv_types [--models zoo 0.5B] [--folder FOLDER] [--quick]

Each model first writes greedily with keys and values in its own type (float32 here); a verifier is given what the
generator wrote. Then every type reads those same tokens, and the logits of all ids at each place are compared (teacher
forcing): a token is changed where the type's best id is another. Errors are in logits, beside the standard deviation of
a place's logits. After that every type writes, or judges, for itself: texts that come out otherwise, and how many are
right. Nothing is timed. With the FOLDER of `benchmarks.common.real_models`, real models write on after prose, too.
"""

from __future__ import annotations

import gc
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.common.results import machine_line, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, greedy, run, samples
from benchmarks.common.settings import Settings, parser, settings_of
from benchmarks.common.shapes import COUNTING, HALF, chat_prompts, folder_of, random_prompts
from benchmarks.common.subjects import subjects
from benchmarks.peers.peer import Tokens
from family.tasks.counting import Problem, evaluation_problems, judge
from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest
from qpdsl.executor.verifiers.rlhflow import RlhflowVerifier
from qpdsl.grammar.words import KV_TYPES, KVType

MINI, PRM = "zoo/counting-mini", "zoo/counting-prm"
KINDS: tuple[KVType | None, ...] = (None, *KV_TYPES)
_ROOM = 64 << 20
# Teacher forcing holds the logits of all places at once.
_FORCED = 64


@dataclass(frozen=True)
class Text:
    """Tokens, and the places whose logits are compared: those before what was written, or what is judged."""

    tokens: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Off:
    """How far one type's logits are from those of the model's own type, over `places` places."""

    places: int
    largest: float
    mean: float
    spread: float
    changed: float


@dataclass(frozen=True)
class Row:
    """One model with one type. `texts`: share that comes out otherwise; `right`: share right; None: not asked."""

    model: str
    kv: str
    tokens_per_mib: int
    ratio: float
    ratio_bfloat16: float
    off: Off | None = None
    texts: float | None = None
    right: float | None = None


def served(model: PagedModel) -> PagedEngine:
    return engine_of({NAME: model}, max(_ROOM, 600 * model.layout.page_bytes))


def logits_of(model: PagedModel, texts: list[Text]) -> list[torch.Tensor]:
    """For each text the logits float32 [places, V]."""
    engine = served(model)
    backend, kept = engine.runner(NAME).backend, list[torch.Tensor]()
    forward = backend.forward

    def keep(*arguments: object) -> object:
        forwarded = forward(*arguments)  # type: ignore[arg-type]
        kept.append(model.logits(forwarded.hidden))
        return forwarded

    backend.forward = keep  # type: ignore[method-assign,assignment]
    logits = []
    for text in texts:
        kept.clear()
        engine.submit(NAME, ReadRequest(text.tokens, text.places, (0,), cached=False))
        run(engine)
        logits.append(torch.cat(kept))
    return logits


def written(model: PagedModel, prompts: Tokens, length: int, eos: frozenset[int]) -> Tokens:
    """What it writes greedily after each prompt."""
    engine = served(model)
    requests: list[GenerateRequest] = [replace(greedy(prompt, length), eos=eos) for prompt in prompts]
    tickets = [engine.submit(NAME, request) for request in requests]
    run(engine)
    return samples(tickets)


def off(plain: list[torch.Tensor], other: list[torch.Tensor]) -> Off:
    errors = [(a - b).abs() for a, b in zip(plain, other, strict=True)]
    changed = sum(int((a.argmax(-1) != b.argmax(-1)).sum()) for a, b in zip(plain, other, strict=True))
    places = sum(map(len, plain))
    return Off(
        places,
        max(float(error.max()) for error in errors),
        sum(float(error.mean(-1).sum()) for error in errors) / places,
        sum(float(logits.std(-1).sum()) for logits in plain) / places,
        changed / places,
    )


def described(name: str, kind: KVType | None, model: PagedModel) -> Row:
    layout = model.layout
    own, half = replace(layout, kv_type=None), replace(layout, kv_type=None, dtype=torch.bfloat16)
    return Row(
        name,
        kind or str(model.dtype).removeprefix("torch."),
        (1 << 20) // layout.token_bytes,
        round(own.token_bytes / layout.token_bytes, 2),
        round(half.token_bytes / layout.token_bytes, 2),
    )


def generator(name: str, folder: Path, prompts: Tokens, length: int, problems: list[Problem] | None) -> list[Row]:
    """The rows of a model that writes; where there are `problems`, their answers are looked at."""
    tokenizer = AutoTokenizer.from_pretrained(folder) if problems else None
    eos = frozenset([tokenizer.eos_token_id]) if tokenizer else frozenset[int]()
    rows, theirs, forced, plain = list[Row](), Tokens(), list[Text](), list[torch.Tensor]()
    for kind in KINDS:
        model = PagedModel(checkpoint(folder), kv_type=kind)
        mine = written(model, prompts, length, eos)
        if kind is None:
            theirs, forced = mine, [forced_text(*pair) for pair in list(zip(prompts, mine, strict=True))[:_FORCED]]
        logits = logits_of(model, forced)
        plain = plain or logits
        right = None
        if tokenizer and problems:
            texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in mine]
            right = sum(judge(*pair).right for pair in zip(problems, texts, strict=True)) / len(texts)
        other = sum(a != b for a, b in zip(mine, theirs, strict=True)) / len(mine)
        rows.append(replace(described(name, kind, model), off=off(plain, logits), texts=other, right=right))
        del model
        gc.collect()
    return rows


def forced_text(prompt: tuple[int, ...], written: tuple[int, ...]) -> Text:
    """The places at which the tokens that were written were chosen."""
    return Text(prompt + written[:-1], tuple(range(len(prompt) - 1, len(prompt) + len(written) - 1)))


def verifier(problems: list[Problem], solutions: list[str]) -> list[Row]:
    """The rows of the verifier: `texts` are verdicts on steps that change, `right` those that the checker shares."""
    folder = zoo.path(PRM)
    reads = RlhflowVerifier(AutoTokenizer.from_pretrained(folder))
    forced, truth = list[Text](), list[bool]()
    plus = minus = 0
    for problem, solution in zip(problems, solutions, strict=True):
        laid = reads.reads(problem.text, solution)
        if laid is not None:
            forced.append(Text(laid.tokens, laid.positions))
            truth += judge(problem, solution).steps
            plus, minus = laid.ids
    rows, base = list[Row](), list[bool]()
    plain = list[torch.Tensor]()
    for kind in KINDS:
        model = PagedModel(checkpoint(folder), kv_type=kind)
        logits = logits_of(model, forced)
        plain = plain or logits
        verdicts = [bool(verdict) for text in logits for verdict in text[:, plus] > text[:, minus]]
        base = base or verdicts
        rows.append(
            replace(
                described(PRM, kind, model),
                off=off(plain, logits),
                texts=sum(a != b for a, b in zip(verdicts, base, strict=True)) / len(base),
                right=sum(a == b for a, b in zip(verdicts, truth, strict=True)) / len(base),
            )
        )
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        "| model | KV | tokens a MiB | times its own type | times bfloat16 | largest logit error | mean "
        "| logits' std | greedy tokens changed | texts or verdicts changed | right |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        assert row.off is not None
        errors = f"{row.off.largest:.3f} | {row.off.mean:.4f} | {row.off.spread:.2f} | {row.off.changed:.2%}"
        right = "" if row.right is None else f"{row.right:.1%}"
        lines.append(
            f"| {row.model} | {row.kv} | {row.tokens_per_mib:,} | {row.ratio:.2f} | {row.ratio_bfloat16:.2f} "
            f"| {errors} | {row.texts:.1%} | {right} |"
        )
    return "\n".join(lines)


def bench(settings: Settings, folder: Path | None = None) -> None:
    rows = list[Row]()
    count, length = settings.sized(500, 16), settings.sized(256, 96)
    problems = evaluation_problems(count)
    if "zoo" in settings.models:
        tokenizer = AutoTokenizer.from_pretrained(zoo.path(COUNTING))
        prompts = chat_prompts([problem.text for problem in problems])
        for name in (COUNTING, MINI):
            rows += generator(name, zoo.path(name), prompts, length, problems)
        model = PagedModel(checkpoint(zoo.path(COUNTING)))
        texts = written(model, prompts[:_FORCED], length, frozenset([tokenizer.eos_token_id]))
        solutions = [tokenizer.decode(ids, skip_special_tokens=True) for ids in texts]
        rows += verifier(problems[:_FORCED], solutions)
    if HALF in settings.models:
        prompts = random_prompts(settings.sized(4, 1), settings.sized(128, 16), 151_936)
        rows += generator(HALF, folder_of(HALF, settings.scratch), prompts, settings.sized(64, 8), None)
    for name, subject in subjects(folder).items() if folder is not None else ():
        if subject.prose:
            prompts = subject.prompts(settings.sized(8, 1), settings.sized(128, 16))
            rows += generator(name, subject.float32, prompts, settings.sized(64, 8), None)
    text = (
        f"# Keys and values in eight and four bits\n\n{table(rows)}\n\n"
        f"Errors and changed tokens with the same tokens given, over {rows[0].off.places if rows[0].off else 0:,} "
        f"places of the first model; changed texts and right answers when each type writes for itself, over "
        f"{count} shipped problems (of the verifier: verdicts on the steps of {min(count, _FORCED)} solutions, right "
        f"where the checker says the same). {HALF} has random weights.\n\n{machine_line()}\n"
    )
    write(settings.output, "kv_types", text, {"problems": count, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, help="where the real models are; without it they are left out")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench(settings_of(arguments, Path(scratch)), arguments.folder)
