"""Write a trained model as an ordinary Hugging Face folder."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of `out` at once when all is written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    yield partial
    for file in partial.iterdir():
        file.chmod(0o644)
    partial.chmod(0o755)
    retired = partial.with_name(partial.name + "-old")
    if out.exists():
        os.rename(out, retired)
    os.rename(partial, out)
    shutil.rmtree(retired, ignore_errors=True)


def save_folder(out: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write float16 weights, config and tokenizer to `out`, replacing an earlier folder at once."""
    half = copy.deepcopy(model).cpu().half().eval()
    half.set_attn_implementation("sdpa")
    half.config.dtype = torch.float16
    half.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    with replacing(out) as partial:
        half.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
