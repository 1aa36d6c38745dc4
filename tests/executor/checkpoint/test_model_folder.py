"""What a model folder must hold, and the words for each thing that is wrong with one. Nothing is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_folder import ModelFolder, isolated
from qpdsl.executor.checkpoint.safe_files import without_code
from tests.support.executor.model_files import CONFIG, index, weights, write_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes | str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def configured(**more: object) -> Callable[[Path], object]:
    return write("config.json", json.dumps({**CONFIG, **more}))


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def behind_folder(folder: Path) -> None:
    (folder.parent / "outside.safetensors").write_bytes(weights("a", "b"))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../outside.safetensors")


def indexed(name: str) -> Callable[[Path], None]:
    """An index that names a file, which is there, in the place of model.safetensors."""

    def change(folder: Path) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").rename(target)
        (folder / "model.safetensors.index.json").write_text(index({"a": name, "b": name}))

    return change


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (remove("config.json"), "has no config.json"),
    "broken configuration": (write("config.json", "{"), "`config.json` cannot be read"),
    "configuration of another type": (write("config.json", "[]"), "`config.json` is no JSON object"),
    "an odd model type": (configured(model_type=[]), "has a `model_type` that is no text"),
    "odd architectures": (configured(architectures={"a": 1}), "has `architectures` that are no list of names"),
    "an odd architecture": (configured(architectures=[1.5]), "has `architectures` that are no list of names"),
    "an odd length": (
        write("tokenizer_config.json", '{"model_max_length": "x"}'),
        "has a `model_max_length` that is no number",
    ),
    "no tokenizer": (remove("tokenizer.json"), "it has no tokenizer: `tokenizer.json` is missing"),
    "broken tokenizer configuration": (write("tokenizer_config.json", "{"), "`tokenizer_config.json` cannot be read"),
    "no weights": (remove("model.safetensors"), "has no .safetensors file (other weight formats can carry code)"),
    "weights of another name": (
        lambda folder: (folder / "model.safetensors").rename(folder / "consolidated.safetensors"),
        "has `consolidated.safetensors`, but neither `model.safetensors` nor `model.safetensors.index.json`",
    ),
    "pointer to weights": (write("model.safetensors", POINTER), "Git LFS pointer; fetch the file itself with `git lfs"),
    "pointer to a configuration": (write("config.json", POINTER), "`config.json` is a Git LFS pointer"),
    "weights cut off": (cut_off, "`model.safetensors` is cut off: it has"),
    "weights cut off in the header": (
        write("model.safetensors", (1000).to_bytes(8, "little") + b"{"),
        "its header alone takes 1,008",
    ),
    "weights that go on": (write("model.safetensors", weights("a") + b"x"), "`model.safetensors` is too long"),
    "no safetensors": (write("model.safetensors", b"PK\3\4" + bytes(60)), "`model.safetensors` is no safetensors file"),
    "empty weights": (write("model.safetensors", b""), "`model.safetensors` is no safetensors file"),
    "damaged header": (
        write("model.safetensors", (2).to_bytes(8, "little") + b"{]"),
        "its header is damaged",
    ),
    "link out of the folder": (behind_folder, "`model.safetensors` is a link to"),
    "index of a pickle": (indexed("pytorch_model.bin"), "names `pytorch_model.bin`, and weights are read from"),
    "index of a file outside": (
        indexed("../outside.safetensors"),
        "names `../outside.safetensors`, which is not a file",
    ),
    "index of a file below": (indexed("sub/w.safetensors"), "names `sub/w.safetensors`, which is not a file"),
    "index of a file that is missing": (
        lambda folder: (indexed("w.safetensors")(folder), (folder / "w.safetensors").unlink()),
        "names `w.safetensors`, and there is no such file",
    ),
    "index that is wrong": (
        lambda folder: (
            indexed("w.safetensors")(folder),
            write("model.safetensors.index.json", index({"c": "w.safetensors"}))(folder),
        ),
        "says that `c` is in `w.safetensors`, and it is not",
    ),
    "index without a map": (
        lambda folder: (indexed("w.safetensors")(folder), write("model.safetensors.index.json", "{}")(folder)),
        "has no `weight_map`",
    ),
    "adapter": (
        write("adapter_config.json", "{}"),
        "it is an adapter (adapter_config.json), not a whole model; give its base model",
    ),
    "other weights": (configured(transformers_weights="w.safetensors"), "names other weights than the folder's own"),
    "other configurations": (
        configured(configuration_files=["config.4.0.0.json"]),
        "stands for several configurations",
    ),
    "another model's weights": (configured(backbone={"use_pretrained_backbone": True}), "weights from another model"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said(fault: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    change, message = FAULTS[fault]
    change(folder)
    with pytest.raises(ModelError) as caught:
        ModelFolder.of("./m", folder)
    assert str(caught.value).startswith("model `./m` cannot be loaded: ") and message in str(caught.value)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", single=False)
    (folder / "two.safetensors").write_bytes(weights("a", "b"))
    with pytest.raises(ModelError, match=r"`a` is in two of its files, `one\.safetensors` and `two\.safetensors`"):
        ModelFolder.of("m", folder)


def test_the_index_does_not_count_where_there_is_one_file(tmp_path: Path) -> None:
    """As transformers has it."""
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(index({"a": "pytorch_model.bin"}))
    found = ModelFolder.of("m", folder)
    assert set(found.tensors.values()) == {"model.safetensors"}
    assert "model.safetensors.index.json" not in found.files


@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_of_the_hub_is_links_to_blobs(shared: bool, tmp_path: Path) -> None:
    """The hub's client keeps a file among the blobs of its repository, or among those of all repositories."""
    snapshot = write_model(tmp_path / "hub" / "models--acme--m" / "snapshots" / "0123", single=False)
    own = snapshot.parents[1] / "blobs"
    own.mkdir()
    (tmp_path / "hub" / "blobs" / "ab").mkdir(parents=True)
    for file in list(snapshot.iterdir()):
        blob = tmp_path / "hub" / "blobs" / "ab" / file.name if shared else own / file.name
        file.rename(blob)
        if shared:
            (own / file.name).symlink_to(f"../../blobs/ab/{file.name}")
        file.symlink_to(f"../../blobs/{file.name}")
    assert set(ModelFolder.of("m", snapshot).tensors) == {"a", "b"}
    (tmp_path / "link").symlink_to(snapshot)
    assert set(ModelFolder.of("m", tmp_path / "link").tensors) == {"a", "b"}
    (tmp_path / "else.safetensors").write_bytes(weights("a"))
    (snapshot / "one.safetensors").unlink()
    (snapshot / "one.safetensors").symlink_to(tmp_path / "else.safetensors")
    with pytest.raises(ModelError, match=r"`one\.safetensors` is a link to"):
        ModelFolder.of("m", snapshot)


def test_names_of_code_are_taken_out_at_any_depth() -> None:
    named = {
        "_attn_implementation": "kernels-community/anything",
        "auto_map": {"AutoModel": "modeling.py"},
        "model_type": "llama",
        "text_config": {"attn_implementation": {"": "a/b"}, "hidden_size": 4},
        "layers": [{"_experts_implementation": "a/b", "trust_remote_code": True, "kept": 1}],
    }
    assert without_code(named) == {"model_type": "llama", "text_config": {"hidden_size": 4}, "layers": [{"kept": 1}]}


def test_transformers_is_given_the_files_that_count_and_no_others(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", single=False)
    for name in (
        "pytorch_model.bin",
        "modeling.py",
        "extra.safetensors",
        "shard-00001-model-00001-of-00001.safetensors",
    ):
        (folder / name).write_bytes(weights("z"))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "auto_map": {"AutoModel": "modeling.M"}}))
    found = ModelFolder.of("m", folder)
    with isolated(found) as files:
        assert sorted(path.name for path in files.iterdir()) == sorted(found.files)
        assert json.loads((files / "config.json").read_text()) == CONFIG
        assert (files / "one.safetensors").read_bytes() == weights("a")
    assert not files.exists()
