"""Exit heads that are fitted: they are nearer to the model than its own layers, and measured by the model itself."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch

from family.tasks.counting import problems
from qpdsl.errors import DataError, UsageError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.load import load, load_modules
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.exit_heads.exit_head import ExitHead, save_heads
from qpdsl.exit_heads.head_fitting import fit_heads
from qpdsl.exit_heads.text_states import StateReader, windows_of
from qpdsl.model_location import locate
from tests.support.executor.model_files import save_random
from tests.support.executor.models import CONFIGS, engine_of, random_model, served

MODEL = "zoo/counting-mini"
TEXTS = ["\n".join(problem.text for problem in islice(problems(seed=3, split="held-out"), 200))]


def quick(model: str, layers: tuple[int, ...] = (), tokens: int = 2000, seconds: float = 1.0):  # type: ignore[no-untyped-def]
    return fit_heads(model, TEXTS, layers, tokens=tokens, seed=0, seconds=seconds)


def test_a_fitted_head_is_nearer_to_the_model(tmp_path: Path) -> None:
    record, heads = quick(MODEL, seconds=2.0)
    layers = [head.layer for head in heads]
    assert layers == sorted(set(layers)) and all(1 <= layer < record.layers for layer in layers)
    for figures in record.heads:
        before, after = figures.divergence
        assert 0 < after < 0.7 * before
        assert figures.curve[0].exits == 1.0 and figures.leave + figures.refine > 1.0
        assert all(first.exits >= second.exits for first, second in pairwise(figures.curve))
        assert figures.bound.lead >= 0 and 0 < figures.bound.quantiles["0.5"] <= figures.bound.largest
        # Surer exits are right more often.
        assert figures.curve[9].greedy >= figures.curve[0].greedy
    save_heads(tmp_path, record, heads)
    digest = location_digest(locate(MODEL))
    loaded = ExitHead.load(MODEL, tmp_path, layers[0], digest, record.layers, record.width)
    assert torch.equal(loaded.weight, heads[0].weight) and loaded.figures == record.heads[0]
    other = location_digest(locate("zoo/counting"))
    with pytest.raises(ModelError, match="other weights than these"):
        ExitHead.load(MODEL, tmp_path, None, other, record.layers, record.width)


@pytest.mark.parametrize("name", CONFIGS)
def test_where_the_last_layers_do_nothing_every_exit_agrees(name: str, tmp_path: Path) -> None:
    """The figures are those of the model's own norm and head, whatever the family."""
    save_random(tmp_path / name, name)
    model, _ = load_modules(name, tmp_path / name, "cpu", None)
    last = StateReader(name, model).head.layers[-1]
    with torch.no_grad():
        for part, parameter in last.named_parameters():
            # What a layer adds to the residual goes through one of these.
            if any(word in part for word in ("o_proj", "down_proj", "dense")):
                parameter.zero_()
    model.save_pretrained(tmp_path / "idle")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "idle" / file).write_bytes((tmp_path / name / file).read_bytes())
    record, _ = quick(str(tmp_path / "idle"), (1,), 600, 0.05)
    (figures,) = record.heads
    assert figures.divergence[0] == pytest.approx(0, abs=1e-5)
    assert figures.divergence[1] == pytest.approx(0, abs=1e-5)
    assert figures.curve[0].greedy == figures.curve[0].sampled == 1.0
    assert figures.bound.largest < 1e-3 and figures.bound.lead == 0.0


def test_the_states_are_those_that_the_engine_reads() -> None:
    """What is kept after a layer, and its norm, is what the compiled layers make of the same tokens."""
    model, tokenizer = load_modules(MODEL, locate(MODEL), "cpu", None)
    reader = StateReader(MODEL, model)
    windows = windows_of(tokenizer, TEXTS, 400, 1024, 0)
    states = reader.read(windows, (1,), lambda share: None)
    assert len(states) == sum(len(window) - 1 for window in windows)
    paged = load(MODEL, locate(MODEL), "cpu", None).paged
    assert torch.allclose(paged.logits(states.read).log_softmax(1).topk(32).values, states.logprobs, atol=1e-3)


def test_the_engine_draws_by_a_head_what_was_measured() -> None:
    record, (head,) = quick(MODEL, (1,), 600, 0.2)
    model, tokenizer = load_modules(MODEL, locate(MODEL), "cpu", None)
    reader = StateReader(MODEL, model)
    windows = windows_of(tokenizer, TEXTS, 400, 64, 0)[:6]
    states = reader.read(windows, (1,), lambda share: None)
    logits = reader.head.logits(reader.head.normed(head(states.after[1])))
    ends = [(len(windows[0]) - 1) * (number + 1) - 1 for number in range(len(windows))]
    engine = engine_of(load(MODEL, locate(MODEL), "cpu", None).paged)
    engine.add_exit_head("h", head)
    leave = EarlyExit(0.0, head="h")
    requests = [GenerateRequest(tuple(window), (0,), SamplingParams(0.0), 1, exit=leave) for window in windows]
    drawn = [samples[0].tokens[0] for samples in served(engine, tuple(requests))]
    assert drawn == logits[ends].argmax(dim=1).tolist()
    assert record.layers == len(reader.head.layers)


def test_the_same_text_and_seed_give_the_same_windows() -> None:
    _, tokenizer = load_modules(MODEL, locate(MODEL), "cpu", None)
    first, again, other = (windows_of(tokenizer, TEXTS, 900, 64, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert {len(window) for window in first} == {len(first[0])} and len(first[0]) <= 64


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no exit after 9 layers: .* has \d"):
        quick(MODEL, (1, 9))
    with pytest.raises(DataError, match="tokens, and 160 are the least"):
        fit_heads(MODEL, ["Mia has 3 boxes."], (), tokens=2000, seed=0)
    model = random_model("llama")
    del model.model.norm
    with pytest.raises(ModelError, match="no exit head can be fitted"):
        StateReader("m", model)
