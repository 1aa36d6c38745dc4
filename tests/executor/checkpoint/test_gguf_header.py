"""What a GGUF file must be, and the words for each thing that is wrong with one. No tensor is read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.gguf_header import TYPES, GGUFHeader, LongList
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from tests.support.executor.gguf_files import Data, floats, gguf_bytes

METADATA: dict[str, Any] = {"general.architecture": "llama", "general.name": "é", "a.list": ["x", "yy"], "a.real": 0.5}
TENSORS: dict[str, Data] = {"a": floats([1.0, 2.0, 3.0]), "b": (8, (2, 32), bytes(68)), "c": (2, (1, 64), bytes(36))}
WHOLE = gguf_bytes(METADATA, TENSORS)


def header(tmp_path: Path, data: bytes, name: str = "m.gguf") -> GGUFHeader:
    (tmp_path / name).write_bytes(data)
    return GGUFHeader.of(tmp_path / name)


@pytest.mark.parametrize("version", [2, 3])
def test_the_head_is_read(version: int, tmp_path: Path) -> None:
    data = gguf_bytes(METADATA, TENSORS, version)
    found = header(tmp_path, data)
    assert found.metadata == {**METADATA, "a.list": ("x", "yy")} and found.architecture == "llama"
    kinds = {tensor.name: (tensor.type, tensor.shape, tensor.size) for tensor in found.tensors.values()}
    assert kinds == {"a": ("F32", (3,), 12), "b": ("Q8_0", (2, 32), 68), "c": ("Q4_0", (1, 64), 36)}
    place = found.tensors["a"]
    assert data[place.start : place.start + place.size] == TENSORS["a"][2]


def test_the_package_of_llama_cpp_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="compares with the package gguf")
    found = header(tmp_path, WHOLE)
    theirs = gguf.GGUFReader(tmp_path / "m.gguf")
    assert {tensor.name: tensor.data_offset for tensor in theirs.tensors} == {
        name: tensor.start for name, tensor in found.tensors.items()
    }
    for number, kind in TYPES.items():
        assert (kind.name, kind.weights, kind.size) == (
            gguf.GGMLQuantizationType(number).name,
            *gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)],
        )


def test_the_digest_is_of_the_head_alone(tmp_path: Path) -> None:
    one = header(tmp_path, WHOLE).digest
    assert header(tmp_path, WHOLE[:-1] + b"x", "other.gguf").digest == one
    assert header(tmp_path, gguf_bytes({**METADATA, "a.real": 0.25}, TENSORS), "third.gguf").digest != one


TEXTS, REALS = [f"é{number}" for number in range(5000)], [number / 4 for number in range(5000)]


def test_lists_of_a_vocabulary_stay_in_the_file(tmp_path: Path) -> None:
    found = header(tmp_path, gguf_bytes({**METADATA, "texts": TEXTS, "reals": REALS, "after": 7}, TENSORS))
    texts, reals = found.metadata["texts"], found.metadata["reals"]
    assert isinstance(texts, LongList) and isinstance(reals, LongList) and len(texts) == len(reals) == 5000
    assert [*texts] == TEXTS and [*texts] == TEXTS and [*reals] == REALS
    assert "é4999" in texts and "é" not in texts and found.metadata["after"] == 7


def test_a_damaged_text_of_a_vocabulary_is_told_where_it_is_read(tmp_path: Path) -> None:
    data = gguf_bytes({**METADATA, "texts": TEXTS}, TENSORS).replace("é4999".encode(), b"\xff\xff4999")
    with pytest.raises(CheckpointError, match=r"`m\.gguf` is cut off or damaged"):
        list(header(tmp_path, data).metadata["texts"])


LONG = gguf_bytes({**METADATA, "texts": TEXTS}, TENSORS)
FAULTS: dict[str, tuple[bytes, str]] = {
    "cut off in a vocabulary": (LONG[: len(LONG) // 2], "is cut off or damaged"),
    "a text of a vocabulary without end": (
        LONG.replace((6).to_bytes(8, "little") + "é1234".encode(), bytes([255] * 8) + "é1234".encode()),
        "is cut off or damaged: a text or a list is longer than the file",
    ),
    "another format": (b"GGML" + WHOLE[4:], "is no GGUF file"),
    "nothing": (b"", "is no GGUF file"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a Git LFS pointer"),
    "cut off in the head": (WHOLE[:60], "is cut off or damaged"),
    "cut off in the tensors": (WHOLE[:-30], "is cut off: it has"),
    "a big-endian file": (b"GGUF" + (3).to_bytes(4, "big") + WHOLE[8:], "is written for big-endian machines"),
    "an old version": (b"GGUF" + (1).to_bytes(4, "little") + WHOLE[8:], "has the GGUF version 1"),
    "no family": (gguf_bytes({"general.name": "x"}, TENSORS), "does not say what model it holds"),
    "a part": (
        gguf_bytes({**METADATA, "split.count": 3}, TENSORS),
        "is one of 3 parts of a model, and its name",
    ),
    "an odd alignment": (gguf_bytes({**METADATA, "general.alignment": 5}, TENSORS), "`general.alignment` 5"),
    "a type of tomorrow": (gguf_bytes(METADATA, {"a": (99, (32,), bytes(32))}), "in the type 99"),
    "half a block": (gguf_bytes(METADATA, {"a": (8, (48,), bytes(68))}), "has 48 columns, and Q8_0 has blocks of 32"),
    "no columns": (gguf_bytes(METADATA, {"a": (0, (0,), b"")}), "is damaged"),
    "too many dimensions": (gguf_bytes(METADATA, {"a": (0, (1,) * 5, bytes(4))}), "has 5 dimensions"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said(fault: str, tmp_path: Path) -> None:
    data, words = FAULTS[fault]
    with pytest.raises(CheckpointError) as caught:
        header(tmp_path, data)
    assert str(caught.value).startswith("`m.gguf` ") and words in str(caught.value)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    twice = WHOLE.replace(b"a.real", b"a.list")
    with pytest.raises(CheckpointError, match=r"`a\.list` twice"):
        header(tmp_path, twice)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_refused_or_changes_nothing_but_values(seed: int, tmp_path: Path) -> None:
    """No byte of the head makes the reader fail in another way, read past the file, or take long."""
    rng = random.Random(seed)
    data = bytearray(WHOLE)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(4, len(WHOLE) - 192)
        data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    try:
        found = header(tmp_path, bytes(data))
    except CheckpointError:
        return
    assert all(tensor.start + tensor.size <= len(data) for tensor in found.tensors.values())


def test_a_folder_with_several_files_names_them(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.GGUF"):
        (tmp_path / name).write_bytes(WHOLE)
    with pytest.raises(ModelError, match=r"has 2 GGUF files \(`a.GGUF`, `b.gguf`\); give the path"):
        ModelFolder.of("m", tmp_path)


def split(folder: Path, names: list[list[str]]) -> list[Path]:
    """A model in parts with these tensors each, as llama.cpp's `llama-gguf-split` writes them."""
    paths = []
    for number, own in enumerate(names):
        metadata = {"split.no": number, "split.count": len(names), "split.tensors.count": len(TENSORS)}
        paths.append(folder / f"m-0000{number + 1}-of-0000{len(names)}.gguf")
        whole = {**METADATA, **metadata} if number == 0 else metadata
        paths[-1].write_bytes(gguf_bytes(whole, {name: TENSORS[name] for name in own}))
    return paths


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_part_of_a_split_model_finds_the_rest(named: int, tmp_path: Path) -> None:
    paths = split(tmp_path, [[], ["c"], ["a", "b"]])
    found = GGUFHeader.of(paths[named])
    assert found.path == paths[0] and found.metadata["general.name"] == "é"
    assert list(found.parts) == [path.name for path in paths]
    places = {tensor.name: (tensor.path, tensor.size) for tensor in found.tensors.values()}
    assert places == {"a": (paths[2], 12), "b": (paths[2], 68), "c": (paths[1], 36)}
    tensor = found.tensors["b"]
    assert tensor.path.read_bytes()[tensor.start : tensor.start + tensor.size] == TENSORS["b"][2]


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_missing_part_is_named(as_folder: bool, tmp_path: Path) -> None:
    paths = split(tmp_path, [["a"], ["b", "c"]])
    paths[0].unlink()
    words = r"`m-00002-of-00002\.gguf` is one of 2 parts of a model; `m-00001-of-00002\.gguf` is missing"
    with pytest.raises(ModelError, match=words):
        ModelFolder.of("m", tmp_path if as_folder else paths[1])


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    paths = split(tmp_path, [["a"], ["b", "c"]])
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(CheckpointError, match=r"`m-00002-of-00002\.gguf` is part 1 of its model"):
        GGUFHeader.of(paths[0])
    split(tmp_path, [["a"], ["b"]])
    with pytest.raises(CheckpointError, match="have 2 tensors; it tells of 3"):
        GGUFHeader.of(paths[0])
    split(tmp_path, [["a"], ["a", "c"]])
    with pytest.raises(CheckpointError, match=r"`m-00002-of-00002\.gguf` has the tensor `a`, as another part has"):
        GGUFHeader.of(paths[0])
    paths[1].rename(tmp_path / "m-00001-of-00001.gguf")
    with pytest.raises(CheckpointError, match="is one of 2 parts of a model, and its name"):
        GGUFHeader.of(tmp_path / "m-00001-of-00001.gguf")


def test_a_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.gguf").write_bytes(WHOLE)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "m.gguf").symlink_to("../outside.gguf")
    with pytest.raises(ModelError, match="outside the folder"):
        ModelFolder.of("m", folder)
