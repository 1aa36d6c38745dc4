"""GGUF files as models of programs: loaded once slowly and then quickly, told apart, and refused with a reason."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.load import load
from qpdsl.executor.text.context import Context, encode
from qpdsl.session.planning import computes_in
from qpdsl.session.settings import SessionSettings
from tests.support.cli import Run
from tests.support.executor.gguf_files import family_model, tokenizer_metadata, write_gguf
from tests.support.executor.programs import compiled, run_all
from tests.support.user_cache import own_cache

pytest.importorskip("gguf", reason="the files are written with the package gguf")
# Of an adapter's two matrices for queries, of rank 2.
SHAPES = {"A": (2, 64), "B": (64, 2)}
ASK = 'model llm = "{file}"\nprogram p(q: text) -> text {{\n chat user=q\n generate llm temperature=0 max_tokens=20\n}}'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own; `gguf` in it is where tokenizers are kept."""
    own_cache(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache" / "qpdsl" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model in blocks of several types, its head tied to its embedding."""
    path = tmp_path / "models" / "small.gguf"
    path.parent.mkdir()
    model = family_model("llama", tie_word_embeddings=True)
    write_gguf(path, "llama", model, ("Q8_0", "Q4_1", "Q5_0", "F16"))
    model.save_pretrained(path.parent / "dense")
    return path


def tokens_of_generate(file: Path, question: str) -> list[int]:
    """What `generate` writes of the same weights as floats."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(file.parent / "dense", dtype=torch.float32)
    prompt = encode(load("m", file, "cpu", None).tokenizer, Context(turns=(("user", question),)))
    ends = [4]
    out = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=ends)
    new: list[int] = out[0, len(prompt) :].tolist()
    return new


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_program_writes_what_generate_writes_of_the_same_weights(file: Path, as_folder: bool) -> None:
    expected = tokens_of_generate(file, "How many?")
    tokenizer = load("m", file, "cpu", None).tokenizer
    shutil.rmtree(file.parent / "dense")
    (result,) = run_all(compiled(ASK.format(file=file.parent if as_folder else file)), [{"q": "How many?"}])
    assert result.value == tokenizer.decode(expected, skip_special_tokens=True)


def test_the_tokenizer_is_that_of_the_file(file: Path) -> None:
    model = load("m", file, "cpu", None)
    metadata = tokenizer_metadata()
    own = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    assert model.tokenizer.get_vocab() == own.get_vocab()
    assert set(model.tokenizer.all_special_tokens) >= {"<|pad|>", "<|end|>"}
    assert model.tokenizer.chat_template == metadata["tokenizer.chat_template"]
    turns = [{"role": "user", "content": "It's 12 <|end|>"}]
    assert model.tokenizer.apply_chat_template(turns, tokenize=False) == own.apply_chat_template(turns, tokenize=False)
    assert model.eos == {4}
    assert model.tokenizer.encode("<|end|>") == [4]


def test_what_is_held_is_said(file: Path) -> None:
    model = load("m", file, "cpu", None)
    assert model.held == "Q4_1, Q5_0, F16, Q8_0, embedding Q8_0"
    assert model.paged.parameters == sum(weight.numel() for weight in family_model("llama").parameters()) - 768 * 64
    assert load("m", file, "cpu", "float32").held is None
    assert computes_in(SessionSettings(device="cuda"), [str(file)]) == "bfloat16"


def test_the_second_time_nothing_is_made(file: Path, cache: Path) -> None:
    told: list[str] = []
    first, second = (load("m", file, "cpu", None, slow=told.append) for _ in range(2))
    assert told[0] == "first time: reading its tokenizer" and told[0] not in told[1:]
    assert [path.name for path in next(cache.iterdir()).iterdir()]
    text = "Some words, 12 + 3.\n\n<|user|>"
    assert first.tokenizer(text).input_ids == second.tokenizer(text).input_ids
    assert first.tokenizer.chat_template == second.tokenizer.chat_template


def cut(entry: Path) -> None:
    os.truncate(entry / "tokenizer.json", 100)


def lose(entry: Path) -> None:
    (entry / "settings.json").unlink()


def spoil(entry: Path) -> None:
    data = bytearray((entry / "tokenizer.json").read_bytes())
    data[len(data) // 2] ^= 1
    (entry / "tokenizer.json").write_bytes(data)


def mix_up(entry: Path) -> None:
    settings = json.loads((entry / "settings.json").read_text())
    (entry / "settings.json").write_text(json.dumps({**settings, "eos_token": ["no", "token"]}))


def replace_by_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("x")


@pytest.mark.parametrize("damage", [cut, lose, spoil, mix_up, replace_by_a_file])
def test_a_damaged_cache_is_made_anew(damage: object, file: Path, cache: Path) -> None:
    before = load("m", file, "cpu", None).tokenizer
    (entry,) = cache.iterdir()
    assert callable(damage)
    damage(entry)
    told: list[str] = []
    after = load("m", file, "cpu", None, slow=told.append).tokenizer
    assert (
        told[0] == "first time: reading its tokenizer"
        and after.get_vocab() == before.get_vocab()
        and after.eos_token == before.eos_token
    )


def test_a_cache_that_cannot_be_written_is_not_needed(file: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    assert load("m", file, "cpu", None).eos == {4}


def test_another_tokenizer_is_not_taken_for_this_one(file: Path) -> None:
    load("m", file, "cpu", None)
    changed = {"tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    write_gguf(file, "llama", family_model("llama"), more=changed)
    assert load("m", file, "cpu", None).tokenizer.chat_template == changed["tokenizer.chat_template"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tokenizer.ggml.pre": "of-tomorrow"}, "splits text in a way that is not known here"),
        ({"tokenizer.ggml.model": "rwkv"}, "is of a kind that is not read, `rwkv`"),
        ({"tokenizer.ggml.merges": ["no"]}, "cannot be read"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused(more: dict[str, object], words: str, file: Path) -> None:
    write_gguf(file, "llama", family_model("llama"), more=more)
    with pytest.raises(ModelError, match=words):
        load("m", file, "cpu", None)


def test_text_is_split_as_the_file_says(file: Path) -> None:
    """Digits are apart in tokenizers that llama.cpp calls `smollm`, which transformers splits as GPT-2 does."""
    write_gguf(file, "llama", family_model("llama"), more={"tokenizer.ggml.pre": "smollm"})
    backend = load("m", file, "cpu", None).backend
    assert [text for text, _ in backend.pre_tokenizer.pre_tokenize_str("in 2024")] == ["in", "Ġ", "2", "0", "2", "4"]


def test_words_that_are_tokens_are_not_merged_from_parts(file: Path) -> None:
    write_gguf(file, "llama", family_model("llama"), more={"tokenizer.ggml.pre": "llama-bpe"})
    model = load("m", file, "cpu", None)
    assert model.backend.model.ignore_merges


def test_a_file_counts_in_the_fingerprint(file: Path) -> None:
    before = location_digest(file)
    assert location_digest(file) == before
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)
    assert location_digest(file) != before


def test_the_command_line_takes_a_file(file: Path, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    program = tmp_path / "ask.qp"
    program.write_text(ASK.format(file="small.gguf"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "How many?"}\n')
    told, given = (qpdsl("run", program, "--set", "q=How many?", *by) for by in ((), ("--model", f"llm={file}")))
    assert told.code == given.code == 0 and told.out == given.out
    shutil.rmtree(tmp_path / "cache")
    first, second = (qpdsl("run", program, "--set", "q=How many?", "-v").err for _ in range(2))
    line = "loading llm: small.gguf (first time: reading its tokenizer) …\n"
    assert line in first and line not in second
    shown, plain = (qpdsl("explain", program, *by).out for by in ((), ("--dtype", "float32")))
    assert shown.endswith("weights of llm: Q4_1, Q5_0, F16, Q8_0, embedding Q8_0\n") and "weights of" not in plain
    assert json.loads(qpdsl("explain", program, "--format", "json").out)["weights"]["llm"].startswith("Q4_1")
    missing = qpdsl("run", program, "--set", "q=?", "--model", "llm=models/none.gguf")
    assert missing.code == 4 and "there is no file `models/none.gguf`" in missing.err
    over = qpdsl("run", program, "--input", rows, "--output", "small.gguf", "--overwrite")
    assert over.code == 2 and "is the file of the model `llm`" in over.err


def test_a_repository_with_one_file_is_a_model(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    for name, files in (("one", ["a.gguf"]), ("two", ["a.gguf", "b.gguf"])):
        cached = tmp_path / "hub" / f"models--acme--{name}"
        (cached / "snapshots" / commit).mkdir(parents=True)
        for part in files:
            shutil.copy(file, cached / "snapshots" / commit / part)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load("acme/one", "acme/one", "cpu", None).held == "Q4_1, Q5_0, F16, Q8_0, embedding Q8_0"
    with pytest.raises(ModelError, match=r"its repository has 2 GGUF files \(`a.gguf`, `b.gguf`\); fetch the one"):
        load("acme/two", "acme/two", "cpu", None)


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_file_is_refused_or_runs(seed: int, file: Path) -> None:
    data = bytearray(file.read_bytes())
    head = GGUFHeader.of(file).parts[file.name]
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(4, head if rng.random() < 0.7 else len(data))
        data[place] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
    file.write_bytes(data)
    with contextlib.suppress(ModelError):
        load("m", file, "cpu", None)


def test_an_adapter_needs_floats(file: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "target_modules": ["q_proj"], "r": 2, "lora_alpha": 4}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    layers = (f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_" for layer in range(2))
    parts = {f"{layer}{part}.weight": torch.ones(shape) for layer in layers for part, shape in SHAPES.items()}
    save_file(parts, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="`--dtype float32` makes floats of them"):
        load("m", file, "cpu", None, adapter=adapter)
    assert load("m", file, "cpu", "float32", adapter=adapter).eos == {4}
