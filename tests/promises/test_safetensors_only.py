"""Weights come from safetensors files in the model's own folder, all of them count in the fingerprint, no code is run.

A folder is made at random, of sound parts and of bad ones. It is refused with the name of a bad part, or all that is
read of it lies in it, is safetensors or plain text, and counts in its digest. Then a model is loaded for good, among
traps that would go off if anything else were read.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.checkpoint.model_folder import ModelFolder, isolated
from qpdsl.executor.models.load import load
from tests.support.executor.model_files import index, save_random, weights, write_model

SEEDS = range(150)
# Names that an index may not give, each with a sound file behind it; `{outside}` is a folder beside the model's.
BAD_NAMES = (
    "pytorch_model.bin",
    "model.pt",
    "w.safetensors.bin",
    "../outside/w.safetensors",
    "sub/w.safetensors",
    "./w.safetensors",
    "{outside}/w.safetensors",
    "link.safetensors",
    "chain.safetensors",
    "folder.safetensors",
    "dangling.safetensors",
)
# What may lie in a folder without being a part of the model.
BESIDE = (
    "pytorch_model.bin",
    "modeling_mine.py",
    "custom_generate/generate.py",
    "shard-00001-model-00001-of-00001.safetensors",
    "other.safetensors",
    "other.gguf",
    "training_args.bin",
)
NAMES_OF_CODE = {
    "_attn_implementation": "kernels-community/anything",
    "attn_implementation": "kernels-community/anything:function",
    "_experts_implementation": "kernels-community/anything",
    "auto_map": {"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Model"},
    "trust_remote_code": True,
    "use_kernels": True,
    "kernel_config": {"kernel_mapping": {"RMSNorm": "kernels-community/anything:RMSNorm"}},
}


def behind(folder: Path, name: str) -> None:
    """Puts a sound weight file where a bad name points, or what makes the name bad."""
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "w.safetensors").write_bytes(weights("b"))
    target = folder / name
    if name == "dangling.safetensors":
        target.symlink_to("nowhere.safetensors")
    elif name == "link.safetensors":
        target.symlink_to("../outside/w.safetensors")
    elif name == "chain.safetensors":
        (folder / "hop").symlink_to(outside)
        target.symlink_to("hop/w.safetensors")
    elif name == "folder.safetensors":
        target.mkdir()
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(weights("b"))


def spoiled(folder: Path, rng: random.Random) -> str:
    """Spoils a folder, and returns the name that is bad in it."""
    if (folder / "model.safetensors").exists() or rng.random() < 0.3:
        # A part of the model itself is a link out of the folder.
        name = rng.choice(sorted(file.name for file in folder.iterdir()))
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(rng.choice((f"../{name}", str(folder.parent / name))))
        return name
    name = rng.choice(BAD_NAMES).replace("{outside}", str(folder.parent / "outside"))
    behind(folder, name)
    (folder / "model.safetensors.index.json").write_text(index({"a": "one.safetensors", "b": name}))
    return name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_folder_is_sound_or_refused_by_name(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    folder = write_model(tmp_path / "m", single=rng.random() < 0.3)
    bad = spoiled(folder, rng) if rng.random() < 0.6 else None
    for name in rng.sample(BESIDE, rng.randrange(4)):
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(weights("z"))
    if bad is not None:
        with pytest.raises(ModelError) as caught:
            ModelFolder.of("m", folder)
        assert f"`{bad}`" in str(caught.value)
        return
    found = ModelFolder.of("m", folder)
    assert {found.file(tensor).suffix for tensor in found.tensors} == {".safetensors"}
    assert all((folder / name).resolve().parent == folder.resolve() for name in found.files)
    with isolated(found) as given:
        assert {path.name for path in given.iterdir()} == set(found.files)
    before = location_digest(folder)
    for name in found.files:
        content = (folder / name).read_bytes()
        # The last number of the weights, or white space in a text: the folder stays sound.
        changed = content[:-1] + bytes([content[-1] ^ 1]) if name.endswith(".safetensors") else content + b"\n"
        (folder / name).write_bytes(changed)
        assert location_digest(folder) != before, f"`{name}` is read and does not count"
        (folder / name).write_bytes(content)
    assert location_digest(folder) == before


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.sprung),)


WATCHED: list[list[tuple[str, str]]] = []


def watch(event: str, given: tuple[Any, ...]) -> None:
    if WATCHED and event in ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system"):
        WATCHED[-1].append((event, str(given[0])))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """What Python opens, connects to and starts while the block runs."""
    if watch not in _HOOKED:
        # Such a hook cannot be taken away.
        sys.addaudithook(watch)
        _HOOKED.append(watch)
    WATCHED.append([])
    try:
        yield WATCHED[-1]
    finally:
        WATCHED.pop()


_HOOKED: list[object] = []


@pytest.mark.parametrize("named", [{}, NAMES_OF_CODE], ids=["as saved", "names of code"])
def test_a_model_among_traps_is_loaded_from_its_own_files(named: dict[str, object], tmp_path: Path) -> None:
    folder, sprung = tmp_path / "m", tmp_path / "sprung"
    save_random(folder, "llama")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **named, "nested": named}))
    code = f"import os; os.mkdir({str(sprung)!r})\n".encode()
    for name in (*BESIDE, "adapter_model.bin", "config.py", "pytorch_model.bin.index.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(code if name.endswith(".py") else pickle.dumps(Trap(sprung)))
    with watched() as happened:
        load("m", folder, "cpu", None)
    assert not sprung.exists()
    assert {event for event, _ in happened} <= {"open"}, "nothing is fetched or started"
    opened = {Path(path) for event, path in happened if str(tmp_path) in path}
    assert opened <= {folder / name for name in ModelFolder.of("m", folder).files}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../outside.safetensors", "sub/w.safetensors"])
def test_an_index_of_anything_else_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    folder, sprung = tmp_path / "m", tmp_path / "sprung"
    save_random(folder, "llama")
    tensors = ModelFolder.of("m", folder).tensors
    target = folder / name
    target.parent.mkdir(exist_ok=True)
    (folder / "model.safetensors").rename(target)
    if not name.endswith(".safetensors"):
        target.write_bytes(pickle.dumps(Trap(sprung)))
    (folder / "model.safetensors.index.json").write_text(index(dict.fromkeys(tensors, name)))
    with watched() as happened, pytest.raises(ModelError, match=f"names `{name}`"):
        load("m", folder, "cpu", None)
    assert not sprung.exists()
    assert not [path for _, path in happened if Path(path).name == target.name]
