"""What `qpdsl runs export` writes to train on, under the loaders and the trainers that it is written for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qpdsl.zoo import path
from tests.live.environments import python_with
from tests.support.cli import Run

pytestmark = pytest.mark.live

# Each trainer prepares the file itself and collates a batch of it; nothing is trained.
PREPARE = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from datasets import load_dataset, load_from_disk
from pathlib import Path
form, file, model, out = sys.argv[1:]
place = Path(file)
data = load_from_disk(file) if place.is_dir() else load_dataset(
    "parquet" if place.suffix == ".parquet" else "json", data_files=file, split="train")
if form in ("trajectories", "verl", "trl-prm"):
    print(json.dumps([sorted(data.column_names), data[0]])); sys.exit()
import torch, trl
from transformers import AutoModelForCausalLM, AutoTokenizer
kind = {"sft": "SFT", "trl-dpo": "DPO", "trl-kto": "KTO"}[form]
how = dict(output_dir=out, use_cpu=True, bf16=False, report_to="none", save_strategy="no", max_length=256,
           per_device_train_batch_size=2)
config = getattr(trl, kind + "Config")(**how)
load = lambda: AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
more = {} if kind == "SFT" else {"ref_model": load()}
trainer = getattr(trl, kind + "Trainer")(
    load(), args=config, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(model), **more)
batch = next(iter(trainer.get_train_dataloader()))
print(json.dumps([sorted(batch), {name: value.shape[0] for name, value in batch.items() if hasattr(value, "shape")},
                  trainer.train_dataset[0]]))
"""


def prepared(form: str, file: Path, tmp_path: Path) -> list[Any]:
    python = python_with("trl", "peft", "datasets")
    given = [python, "-c", PREPARE, form, file, path("zoo/counting"), tmp_path / "out"]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("form", "ending"),
    [
        ("sft", ".jsonl"),
        ("trl-dpo", ".parquet"),
        ("trl-kto", ""),
        ("trl-prm", ".parquet"),
        ("trajectories", ""),
        ("verl", ".parquet"),
    ],
)
def test_trainers_take_it_as_it_is(qpdsl: Run, tmp_path: Path, form: str, ending: str) -> None:
    how = ("--set", "n=4", "--input", "counting-500", "--limit", "4", "--no-greedy", "--save-trajectories")
    assert qpdsl("run", "best_of_n", *how, "--output", tmp_path / "out.jsonl").code == 0
    file = tmp_path / f"data{ending}"
    container = () if ending else ("--format", "hf")
    made = qpdsl("runs", "export", "last", "--as", form, *container, "--output", file)
    assert made.code == 0, made.err
    found = prepared(form, file, tmp_path)
    if form in ("trajectories", "verl", "trl-prm"):
        columns, first = found
        wanted = {
            "trajectories": {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score"},
            "verl": {"data_source", "prompt", "ability", "reward_model", "extra_info"},
            "trl-prm": {"prompt", "completions", "labels"},
        }
        assert wanted[form] <= set(columns)
        if form == "trajectories":
            assert len(first["response_ids"]) == len(first["response_mask"]) == len(first["response_logprobs"])
        return
    names, shapes, first = found
    if form == "sft":
        # The prompt is masked, and the end of the turn is learned.
        assert {"input_ids", "labels"} <= set(names)
        assert shapes["input_ids"] == 2
    elif form == "trl-dpo":
        assert {"prompt_ids", "chosen_ids", "rejected_ids"} <= set(first)
    else:
        assert {"prompt_ids", "completion_ids", "label"} <= set(first)
