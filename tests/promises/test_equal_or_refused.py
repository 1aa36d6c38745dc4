"""Equal to `generate`, or refused: every decoder family that transformers has, and models of random shapes.

`QPDSL_REGENERATE=1 pytest …` writes the table of `docs/use/models.md` anew.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForMultimodalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qpdsl import zoo
from qpdsl.cli.exits import Exit
from tests.support.cli import Run
from tests.support.executor.equality import refusal
from tests.support.executor.families import Family, families, is_release, multimodal, tiny
from tests.support.golden import check
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "models.md"
TRIED = [name for name, family in families().items() if family.untried is None]
RUN = [name for name, family in families().items() if name == family.type and not (family.refused or family.untried)]
# The families whose layers run here without transformers' modules, and some whose do not.
SHAPED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gpt_neox",
    "olmo3",
    "cohere2",
    "starcoder2",
    "granite",
)
WINDOWED = ("mistral", "gemma2", "olmo3", "cohere2", "starcoder2")
# Models that a command is given: two that crashed at load, and two that decoded other tokens.
LOADED = ("moshi", "electra", "rwkv", "bart")


@pytest.mark.skipif(not is_release(), reason="another release of transformers has other families")
def test_every_family_is_listed() -> None:
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == {family.type for family in families().values()}


@pytest.mark.parametrize("name", TRIED)
def test_a_family_decodes_as_generate_does_or_is_refused(name: str) -> None:
    family = families()[name]
    try:
        model = tiny(family)
    except Exception as error:
        if is_release():
            raise
        pytest.skip(f"this release of transformers does not build it: {error}")
    reason = refusal(model)
    if not is_release():
        return
    if family.refused is None:
        assert reason is None
    else:
        assert reason is not None and family.refused in reason
        assert not re.search("size of tensor|must match|slice", reason)


@pytest.mark.parametrize("name", multimodal())
def test_so_does_the_text_of_what_also_sees_or_hears(name: str) -> None:
    try:
        model = tiny(multimodal()[name], AutoModelForMultimodalLM)
    except Exception as error:
        if is_release():
            raise
        pytest.skip(f"this release of transformers does not build it: {error}")
    assert refusal(model) is None


@pytest.mark.parametrize("seed", range(8))
def test_so_does_a_model_of_random_shape(seed: int) -> None:
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 4])
    dim = rng.choice([4, 8, 12, 16])
    shape: dict[str, Any] = {
        "num_hidden_layers": (layers := rng.choice([1, 2, 3])),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "hidden_size": heads * dim,
        "tie_word_embeddings": rng.random() < 0.5,
        "rope_parameters": {
            "rope_type": (kind := rng.choice(["default", "linear", "dynamic", "yarn"])),
            "rope_theta": rng.choice([100.0, 10000.0]),
            **({} if kind == "default" else {"factor": 4.0}),
        },
    }
    name = rng.choice(SHAPED)
    if name in WINDOWED:
        shape["sliding_window"] = rng.choice([7, 24, 50])
    if name in ("gemma2", "olmo3", "cohere2"):
        shape["layer_types"] = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    if name == "olmo3":
        shape["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": 500.0} for kind in ("sliding_attention", "full_attention")
        }
    assert refusal(tiny(Family(name, shape))) is None


@pytest.mark.parametrize("name", LOADED)
def test_a_command_tells_the_reason(name: str, tmp_path: Path, qpdsl: Run) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-mini"))
    family = families()[name]
    sizes = {"vocab_size": len(tokenizer)}
    tiny(Family(name, {**family.changes, **sizes})).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    program = tmp_path / "p.qp"
    program.write_text(
        f'program p() -> text {{ prompt "Mia"\n generate "{tmp_path / "m"}" max_tokens=2\n return text }}'
    )
    ran = qpdsl("run", program)
    assert ran.code == Exit.MODEL
    assert family.refused is not None and family.refused in ran.err


@pytest.mark.skipif(not is_release(), reason="the page is of one release of transformers")
def test_the_page_has_the_table() -> None:
    refused: dict[str, list[str]] = defaultdict(list)
    for name, family in families().items():
        if family.refused or family.untried:
            refused[family.refused or f"not tried: {family.untried}"].append(name)
    rows = [f"| {reason} | {', '.join(names)} |" for reason, names in sorted(refused.items())]
    others = [name for name, family in families().items() if name != family.type and not family.refused]
    table = "\n".join(
        [
            f"**Run** ({len(RUN)}): {', '.join(RUN)}.",
            "",
            f"**Run, with these settings**: {', '.join(others)}.",
            "",
            f"**Run, of what also sees or hears, by their text** ({len(multimodal())}): {', '.join(multimodal())}.",
            "",
            "| refused, because | families |",
            "|---|---|",
            *rows,
        ]
    )
    before, _ = PAGE.read_text("utf-8").split("<!-- table -->\n")
    check(PAGE, f"{before}<!-- table -->\n{table}")
