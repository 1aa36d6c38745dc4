"""Models of one's own: folders of other architectures, and hub ids through the real loader over a local cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import load
from qpdsl.executor.text.context import Context, encode
from tests.support.executor.models import CONFIGS, random_model
from tests.support.executor.programs import HEADER, compiled, run_all

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def save(folder: Path, name: str) -> None:
    """A random-weight model of the named architecture, with the built-in tokenizer's vocabulary."""
    model = random_model(name, vocab_size=768, pad_token_id=0)
    model.generation_config.eos_token_id = [4, 3]
    model.save_pretrained(folder)
    for file in TOKENIZER_FILES:
        shutil.copy(zoo.path("zoo/counting") / file, folder / file)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_runs_as_transformers_would(name: str, tmp_path: Path) -> None:
    save(tmp_path / name, name)
    header = HEADER.replace("zoo/counting-prm", str(tmp_path / name)).replace("zoo/counting", str(tmp_path / name))
    plan = compiled(
        header + "program p(problem: text) -> text {\n chat user=problem\n generate llm temperature=0 max_tokens=20\n}"
    )
    (result,) = run_all(plan, [{"problem": "How many?"}])
    model = random_model(name, vocab_size=768, pad_token_id=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
    prompt = encode(tokenizer, Context(turns=(("user", "How many?"),)))
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=[4, 3])
    assert result.value == tokenizer.decode(expected[0, len(prompt) :], skip_special_tokens=True)


def test_eos_is_what_the_generation_configuration_says(tmp_path: Path) -> None:
    save(tmp_path / "m", "llama")
    assert load("m", tmp_path / "m", "cpu", None).eos == {4, 3}


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "m", "llama")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        load("m", tmp_path / "m", "cpu", None)


def test_a_hub_id_is_loaded_by_the_hub_client_from_its_cache(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--acme--counter"
    shutil.copytree(zoo.path("zoo/counting"), cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    command = [sys.executable, "-m", "qpdsl", "run", "greedy", "--set", "problem=How many?"]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    runs = [
        subprocess.run([*command, *model], capture_output=True, text=True, env=environment, check=False)
        for model in (["--model", "llm=acme/counter"], [], ["--model", "llm=acme/other"])
    ]
    assert [run.returncode for run in runs] == [0, 0, 4], runs
    assert runs[0].stdout == runs[1].stdout
    assert "acme/other" in runs[2].stderr and "Traceback" not in runs[2].stderr
