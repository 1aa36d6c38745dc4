"""Folders of models that also see or hear: their text runs, and what is left out is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMultimodalLM, PreTrainedModel

from qpdsl import zoo
from qpdsl.executor.models import quick_load
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.session.described_model import described_model
from tests.support.cli import Run
from tests.support.executor.families import Family, families, is_release, multimodal, tiny
from tests.support.executor.models import engine_of, served
from tests.support.user_cache import own_cache

if not is_release():
    pytest.skip("another release of transformers builds others", allow_module_level=True)

PROMPT = tuple(range(20, 40))
IMAGES = "it also takes images; of it only the language model runs here"
_ENCODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
_IMAGE = {"image_size": 28, "patch_size": 14}
WIDTHS = ("vision_output_dim", "projector_input_dim", "projector_output_dim")
# Those that have a class of the text alone in transformers, and some that have none.
FOLDERS: dict[str, Family] = {
    "gemma3": Family("gemma3", {"vision_config": {**_ENCODER, **_IMAGE}}),
    "llama4": Family(
        "llama4",
        {**families()["llama4"].changes, "vision_config": {**_ENCODER, **_IMAGE, **dict.fromkeys(WIDTHS, 32)}},
    ),
    "qwen3_5": families()["qwen3_5"],
    **{name: multimodal()[name] for name in ("lfm2_vl", "mistral3", "qwen2_5_vl", "qwen3_vl", "voxtral")},
}


def written(name: str, folder: Path) -> PreTrainedModel:
    """A folder as transformers saves the whole model, with the built-in tokenizer; that model."""
    family = FOLDERS[name]
    text = {**family.changes.get("text_config", {}), "vocab_size": 768}
    model = tiny(Family(name, {**family.changes, "text_config": text}), AutoModelForMultimodalLM)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(zoo.path("zoo/counting") / file, folder / file)
    return model


@pytest.mark.parametrize("name", FOLDERS)
def test_the_text_runs_as_in_the_whole_and_the_rest_is_not_kept(name: str, tmp_path: Path) -> None:
    whole = written(name, tmp_path)
    model = load("m", tmp_path, "cpu", None)
    assert model.notes == (IMAGES.replace("images", "sound") if name == "voxtral" else IMAGES,)
    assert model.paged.parameters == described_model(str(tmp_path)).parameters < whole.num_parameters()
    request = GenerateRequest(PROMPT, (0,), SamplingParams(0.0), 12, frozenset())
    ((sample,),) = served(engine_of(model.paged), (request,))
    # The whole Llama 4 of transformers 5.24 generates nothing without an image.
    theirs = whole.language_model if name == "llama4" else whole
    theirs.generation_config.eos_token_id = None
    ids = torch.tensor([PROMPT])
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert sample.tokens == tuple(out[0, len(PROMPT) :].tolist())


def test_what_is_left_out_is_said_at_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qpdsl: Run) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    folder, program = tmp_path / "m", tmp_path / "p.qp"
    written("mistral3", folder)
    program.write_text(f'program p() -> text {{\n prompt "Mia"\n generate "{folder}" max_tokens=2\n return text\n}}')
    first, second = (qpdsl("run", program) for _ in range(2))
    assert first.code == second.code == 0 and first.out == second.out
    assert [ran.err.count(f"note: {IMAGES}") for ran in (first, second)] == [1, 1]
    assert quick_load.load("m", folder, "cpu", None).notes == (IMAGES,)
