"""Models of one's own: folders of other architectures, and hub ids through the real loader over a local cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import load
from qpdsl.executor.text.context import Context, encode
from qpdsl.session.session import Session
from tests.support.executor.model_files import save_random
from tests.support.executor.models import CONFIGS, random_model
from tests.support.executor.programs import HEADER, compiled, run_all


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_runs_as_transformers_would(name: str, tmp_path: Path) -> None:
    save_random(tmp_path / name, name)
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
    save_random(tmp_path / "m", "llama")
    assert load("m", tmp_path / "m", "cpu", None).eos == {4, 3}


@pytest.mark.parametrize("eos", ["4", ["4"], [[4]], 4.0, {"a": 1}])
def test_an_eos_that_is_no_token_id_is_refused(eos: object, tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    file = tmp_path / "m" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": eos}))
    with pytest.raises(ModelError, match="eos_token_id"):
        load("m", tmp_path / "m", "cpu", None)


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        load("m", tmp_path / "m", "cpu", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "m"
    save_random(folder, "llama")
    return folder


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return changed


def configured(**more: object) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))

    return changed


NORM, DOWN = "model.layers.1.input_layernorm.weight", "model.layers.0.mlp.down_proj.weight"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a weight is missing": (weights(lambda t: t.pop(DOWN)), f"its files lack `{DOWN}` of LlamaForCausalLM"),
    "all biases are missing": (
        configured(attention_bias=True),
        "its files lack `model.layers.0.self_attn.k_proj.bias` of LlamaForCausalLM (and 7 others)",
    ),
    "a weight too many": (
        weights(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)})),
        "its files have `model.layers.0.self_attn.q_proj.bias`, for which LlamaForCausalLM has no place",
    ),
    "another width": (configured(intermediate_size=95), "has the shape 48×96, and config.json makes it 48×95"),
    "another vocabulary": (configured(vocab_size=700), "has the shape 768×48, and config.json makes it 700×48"),
    "a number that is none": (
        weights(lambda t: t[NORM].__setitem__(3, float("nan"))),
        f"`{NORM}` holds NaN; its weights are damaged",
    ),
    "infinity": (weights(lambda t: t[DOWN].mul_(float("inf"))), f"`{DOWN}` holds "),
    "a smaller embedding than the tokenizer's": (
        lambda folder: (
            configured(vocab_size=700)(folder),
            weights(lambda t: t.update({name: t[name][:700].clone() for name in t if t[name].shape[0] == 768}))(folder),
        ),
        "the id 767, and it has embeddings for 700 ids",
    ),
    "a broken tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "`tokenizer.json` is broken: ",
    ),
    "an architecture of its own": (
        configured(model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
        "has the model_type `mine`, which transformers",
    ),
    "no architecture": (configured(model_type=None), "its config.json names no model_type"),
    "no language model": (configured(model_type="vit"), "transformers has no model of its model_type, `vit`, that"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_checkpoint_is_said(fault: str, whole: Path, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    folder = tmp_path / "m"
    shutil.copytree(whole, folder)
    change(folder)
    with pytest.raises(ModelError) as caught:
        load("m", folder, "cpu", None)
    assert message in str(caught.value)
    assert "report" not in str(caught.value) and "qpdsl-model-" not in str(caught.value)


def test_a_configuration_chooses_no_attention(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers would take the name for a repository of the hub, fetch a kernel from it, and run it."""
    folder = tmp_path / "m"
    shutil.copytree(whole, folder)
    configured(_attn_implementation="kernels-community/anything", attn_implementation="a/b", use_kernels=True)(folder)
    monkeypatch.setattr("socket.socket.connect", lambda *given: pytest.fail(f"connects to {given}"))
    assert load("m", folder, "cpu", None).eos == {4, 3}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "its tokenizer has no chat template; use `prompt` instead of `chat`"),
        ("{% for m in messages %}", "its chat template does not take these turns"),
        ("{{ raise_exception('no system turn') }}", "no system turn"),
    ],
)
def test_a_template_that_does_not_do_is_told_when_the_plan_is_loaded(
    template: str | None, message: str, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(whole, folder)
    if template is None:
        (folder / "chat_template.jinja").unlink()
    else:
        (folder / "chat_template.jinja").write_text(template)
    chat = f'model m = "{folder}"\nprogram p(q: text) -> text {{\n chat user=q\n generate m max_tokens=2\n}}'
    with pytest.raises(ModelError, match=re.escape(message)):
        Session().load(compiled(chat))
    Session().load(compiled(chat.replace("chat user=q", 'prompt "{q}"')))


@pytest.mark.parametrize(
    "stages",
    [
        'generate m max_tokens=2\n chat user="Well?"\n generate m max_tokens=2',
        'repeat 2 {\n generate m max_tokens=2\n chat user="Well?"\n }\n generate m max_tokens=2',
        'if len(q) > 1 {\n generate m max_tokens=2\n chat user="Well?"\n }\n generate m max_tokens=2',
    ],
)
def test_turns_that_come_later_are_tried_when_the_plan_is_loaded(stages: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(whole, folder)
    told = "{% if messages[1] is defined %}{{ raise_exception('one turn only') }}{% endif %}{{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(told)
    program = f'model m = "{folder}"\nprogram p(q: text) -> text {{\n chat user=q\n {stages}\n}}'
    with pytest.raises(ModelError, match="one turn only"):
        Session().load(compiled(program))
    Session().load(compiled(program.replace('chat user="Well?"', 'say " Well"')))


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
