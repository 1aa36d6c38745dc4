"""The product's own path on a GPU: models from disk, a verifier, a session that runs a program. Right, or wrong.

That needs packages which the rest does without; where one is missing, no check is begun.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_checks import check, requests, serve, tokens
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests import engine_loop
from qpdsl.executor.requests.request import ReadRequest

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "qpdsl" / "zoo"
PROBLEMS = ("What is 3 * 4?", "Ann has 4 boxes with 5 stamps in each box. How many stamps does Ann have?")
# What a machine with torch may lack.
PACKAGES = ("lark", "llguidance", "llvmlite", "pydantic")
# Ids that a built-in model knows.
_KNOWN = 700
# How far a probability of a verifier in bfloat16 may be from that of transformers' own forward.
_APART = 0.03


def run(record: Record, bench: Bench) -> None:
    """The built-in models, a model of 1.5B with a value head, and a program: table `checks`."""
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        record.skip(f"models from disk and a program (no {', '.join(lacking)}: see --wheels)")
        return
    check(record, "a built-in model from disk: the CPU's tokens in float32", lambda: built_in(bench))
    check(record, "a random 1.5B with a value head from disk: transformers' scores", lambda: value_head(bench))
    check(record, "a program with a verifier: the CPU's answers", lambda: program(bench))


def built_in(bench: Bench) -> str | None:
    """Tokens of a model that was trained, where attention decides what comes next."""
    from qpdsl.executor.models.load import load

    batch = [
        replace(request, prompt=tuple(token % _KNOWN for token in request.prompt))
        for request in (requests(2, 3) if bench.dry else requests())
    ]
    drawn = []
    for device in ("cpu", bench.device):
        engine = PagedEngine(EngineConfig(), kv_bytes="64MiB")
        engine.add("m", load("zoo/counting", ZOO / "counting", device, "float32").paged)
        drawn.append(tokens(serve(engine, batch)))
        engine.close()
    return None if drawn[0] == drawn[1] else "other tokens"


def value_head(bench: Bench) -> str | None:
    """Scores in bfloat16, of weights that are written as published checkpoints are."""
    from qpdsl.executor.models.load import load

    with tempfile.TemporaryDirectory() as folder:
        own, head = saved(Path(folder), bench)
        texts = [tuple(range(20 + index, 60 + 3 * index)) for index in range(8)]
        with torch.inference_mode():
            hidden = [own.model(torch.tensor([text], device=own.device))[0][0, -1].float() for text in texts]
            wanted = torch.stack([torch.nn.functional.linear(row, head.to(row)) for row in hidden])[:, 0].sigmoid()
        del own, hidden
        bench.free()
        loaded = load("prm", Path(folder), bench.device, None, kind="skywork")
        engine = PagedEngine(EngineConfig(), kv_bytes="64MiB")
        engine.add("prm", loaded.paged)
        tickets = [engine.submit("prm", ReadRequest(text, (len(text) - 1,), (0,))) for text in texts]
        while engine.has_work:
            engine.step()
        found = torch.tensor([ticket.result().logits[0][0] for ticket in tickets]).sigmoid()
        engine.close()
    apart = float((found - wanted.cpu()).abs().max())
    return None if apart <= _APART else f"scores differ by {apart:.3g}"


def saved(folder: Path, bench: Bench) -> tuple[Any, torch.Tensor]:
    """A model of the shape of Qwen 2.5 1.5B, written as checkpoints are, and the weights [1, d] of its value head."""
    shape = (64, 96, 2, 4, 2, 1000) if bench.dry else (1536, 8960, 28, 12, 2, 151_936)
    hidden, intermediate, layers, heads, kv_heads, vocabulary = shape
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(ZOO / "counting").save_pretrained(folder)
    head = torch.randn(1, hidden) / hidden**0.5
    save_file(
        {"v_head.summary.weight": head, "v_head.summary.bias": torch.zeros(1)},
        folder / "head.safetensors",
        {"format": "pt"},
    )
    add_to_index(folder)
    return model, head


def add_to_index(folder: Path) -> None:
    """Names the file of the head beside those of the model."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        whole = json.loads(index.read_text("utf-8"))
    else:
        from safetensors import safe_open

        with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
            whole = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), "model-1.safetensors")}
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    whole["weight_map"] |= dict.fromkeys(("v_head.summary.weight", "v_head.summary.bias"), "head.safetensors")
    index.write_text(json.dumps(whole), "utf-8")


def program(bench: Bench) -> str | None:
    """Beam search over the built-in models, as `qpdsl run beam_search` has it."""
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.grammar.source import Source
    from qpdsl.planner.check.program import lower
    from qpdsl.planner.optimize.optimizer import planned
    from qpdsl.session.session import Session

    plan = planned(
        lower(
            parse_file(Source("beam_search.qp", (ROOT / "programs" / "beam_search.qp").read_text("utf-8"))),
            "beam_search",
        )
    )
    defaults = {param.name: param.default for param in plan.params if param.default is not None}
    answers = []
    for device in ("cpu", bench.device):
        session = Session(device=device, dtype="float32", kv_bytes="64MiB")
        session.load(plan)

        async def answer(session: Session = session) -> list[object]:
            async with session.running():
                given = [{**defaults, "problem": problem, "n": 4, "width": 2} for problem in PROBLEMS]
                return [(await session.run(plan, values)).value for values in given]

        answers.append(engine_loop.run(answer()))
    return None if answers[0] == answers[1] else f"{answers[1]} where a CPU has {answers[0]}"
