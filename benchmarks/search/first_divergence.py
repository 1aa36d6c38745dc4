"""`python -m benchmarks.search.first_divergence`: where int8 and int4 weights first part from float32.

The weights of `zoo/counting` are rounded to whole numbers (by channel in 8 bits, in groups of 32 in 4) and written as
the package compressed-tensors writes them. The verifier stays in float32. Programs run on the first 100 shipped
problems under both, and `qpdsl diff --first-divergence` sets them beside each other: the same noise, token by token.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.common.results import machine_line, write
from qpdsl import zoo
from qpdsl.cli import main as qpdsl

NAME = "first_divergence"
ROWS = 100
MODEL = "zoo/counting"
PROGRAMS = {"best_of_n": ("--set", "n=4"), "beam_search": ()}
# Bits, and weights that share a scale; 0 for a whole channel.
WEIGHTS = {"int8": (8, 0), "int4": (4, 32)}
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json", "generation_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"problems (default: {ROWS})")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["QPDSL_RUNS"] = str(Path(place) / "runs")
        models = {}
        for name, (bits, group) in WEIGHTS.items():
            models[name] = Path(place) / name
            quantize(models[name], bits, group)
        found = {
            (program, name): own
            for program, settings in PROGRAMS.items()
            for name, own in compared(program, settings, models, given.rows).items()
        }
    record = {f"{program} {name}": own for (program, name), own in found.items()}
    write(given.output, NAME, page(found, given.rows), record)


def quantize(folder: Path, bits: int, group: int) -> None:
    """Writes the model with the weights of its layers in so many bits; `group` of them share a scale."""
    source = zoo.path(MODEL)
    folder.mkdir()
    for name in _FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if ".layers." not in name or weight.dim() != 2:
            tensors[name] = weight
            continue
        groups = weight.float().view(weight.shape[0], -1, group or weight.shape[1])
        half = (1 << (bits - 1)) - 1
        scales = (groups.abs().amax(2) / half).clamp(min=1e-8).half()
        codes = (groups / scales.float()[..., None]).round().clamp(-half, half).view(weight.shape)
        tensors |= {name: codes.to(torch.int8), f"{name}_scale": scales}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel"}
    weights |= {"group_size": group or None, "dynamic": False}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def compared(program: str, settings: tuple[str, ...], models: dict[str, Path], rows: int) -> dict[str, dict[str, Any]]:
    """What `qpdsl diff --first-divergence` says of a program under the float32 model and under each of others."""
    found = {}
    common = (program, "--input", "counting-500", "--limit", str(rows), "--no-greedy", *settings)
    for back, (name, model) in enumerate({"": None, **models}.items()):
        more = () if model is None else ("--model", f"llm={model}")
        output = Path(os.environ["QPDSL_RUNS"]).with_name(f"{program}-{name}.jsonl")
        called("run", *common, *more, "--output", str(output))
        if model is not None:
            how = ("--first-divergence", "--rows", str(rows), "--format", "json")
            whole: dict[str, Any] = json.loads(called("diff", f"last-{back}", "last", *how))
            parted = whole["first_divergence"]
            parted["rows"] = [row for row in parted["rows"] if row["lost"] is not None]
            found[name] = {"accuracy": whole["accuracy"], "first_divergence": parted}
    return found


def called(*words: str) -> str:
    """What a command prints. Raises SystemExit where it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = qpdsl(list(words))
    if code:
        raise SystemExit(f"qpdsl {' '.join(words)}: {code}\n{err.getvalue()}")
    return out.getvalue()


def page(found: dict[tuple[str, str], dict[str, Any]], rows: int) -> str:
    """The tables: one row for each program and type of weights."""
    lines = [
        f"# First divergence of float32 and quantized weights, {rows} problems",
        "",
        "Both runs draw by the same random numbers, so all tokens before the first one that differs are the same.",
        "",
        "| program | weights | right, float32 → here | parted by a token | by a choice | at token (median) | "
        "margin in float32 (median) | near ties |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (program, name), own in found.items():
        parted, accuracy = own["first_divergence"], own["accuracy"]
        right = f"{accuracy['first']:.0%} → {accuracy['second']:.0%}"
        counts = f"{parted['diverged']['token']} | {parted['diverged']['choice']}"
        place, margin = parted["median_token"], parted["median_margin"][0]
        figures = f"{place or 0:g} | {margin or 0:.2g} | {parted['near_ties']}"
        lines.append(f"| {program} | {name} | {right} | {counts} | {figures} |")
    lines += [
        "",
        "What flips came from:",
        "",
        "| program | weights | flipped | a token | a choice |",
        "|---|---|---:|---:|---:|",
    ]
    for (program, name), own in found.items():
        flips = own["first_divergence"]["flips"]
        lines.append(f"| {program} | {name} | {sum(flips.values())} | {flips['token']} | {flips['choice']} |")
    lines += ["", "Each flip: where the side that is wrong lost it.", "", _FLIPS, "|---|---|---|---|---|---|---:|"]
    for (program, name), own in found.items():
        lines += [f"| {program} {name} | {_flip(row)} |" for row in own["first_divergence"]["rows"]]
    return "\n".join([*lines, "", machine_line(), ""])


_FLIPS = "| | problem | right in | lost by | at | float32 → here | margin in float32 |"


def _flip(row: dict[str, Any]) -> str:
    lost, side = row["lost"], {"A": "float32", "B": "here"}[row["better"]]
    rounds = "".join(f", round {number + 1}" for number in lost["rounds"])
    if lost["cause"] == "choice":
        return f"{row['id']} | {side} | choice | `{lost['operator']}`{rounds} | {' → '.join(row['answers'])} | –"
    at = f"sample {'.'.join(str(number + 1) for number in lost['path'])}{rounds}, token {lost['token'] + 1}"
    texts = " → ".join(f"`{text}`".replace("\n", "↵") for text in lost["texts"])
    margin = lost["margins"][0]
    return f"{row['id']} | {side} | token | {at} | {texts} | {'–' if margin is None else f'{margin:.2g}'}"


if __name__ == "__main__":
    main()
