"""Loading a model folder, or a hub id that the user named, into a `TextModel`.

MERGED: Checkpoints that come quantized: which are loaded, and which would not give what they should.

transformers reads them with the package that wrote them; what a row of their layers comes to must not hang on the other
rows, or a sample would change with whatever else is in its batch.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from qpdsl.executor.engine.memory.kv_cache import KVType
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.models.text_model import ModelError, TextModel
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.registry import checkpoint_of, has_own_head, head_of, kind_of, verifier_of
from qpdsl.executor.verifiers.verifier import Verifier

_ROWS = 16
# Larger than the numbers that quantizers set apart (LLM.int8 does from 6 on), and than any scale of the other rows.
_LARGE = 1000.0


def unknown_method(config: PretrainedConfig) -> str | None:
    """The quantization that transformers does not know, None where it knows it or there is none.

    It would take the stored numbers for weights.
    """
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return None
    given = found if isinstance(found, dict) else found.to_dict()
    if given.get("load_in_8bit") or given.get("load_in_4bit"):
        return None
    method = str(getattr(given.get("quant_method"), "value", given.get("quant_method")))
    return None if method in AUTO_QUANTIZATION_CONFIG_MAPPING else method


@torch.inference_mode()
def mixed_rows(model: PreTrainedModel) -> str | None:
    """Why a row's result hangs on the other rows of its batch, by a linear layer; None where no layer mixes rows.

    One layer of each type and shape is tried; those that hold nothing, as they were laid out anew, are not.
    """
    tried = set[tuple[Any, ...]]()
    for module in model.modules():
        width = getattr(module, "in_features", None)
        held = [each for each in (*module.parameters(recurse=False), *module.buffers(recurse=False)) if each.numel()]
        if not isinstance(width, int) or not held:
            continue
        kind = (type(module), type(held[0]), width, getattr(module, "out_features", None))
        if kind not in tried and _mixes(module, width, model.dtype, held[0].device):
            name = type(module).__name__
            hint = " (they do not where its llm_int8_threshold is 0)" if name == "Linear8bitLt" else ""
            return f"what its {name} layers make of a token hangs on what else is in the batch{hint}"
        tried.add(kind)
    return None


def _mixes(layer: torch.nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the first half of some rows comes to something else where the second half is large."""
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    others = rows.clone()
    others[_ROWS // 2 :] *= _LARGE
    half = slice(_ROWS // 2)
    return not torch.equal(layer(rows)[half], layer(others)[half])


# As a verifier of the kind that its own files tell.
BY_CONFIGURATION = "by configuration"


def load(
    name: str,
    location: str | Path,
    device: str,
    dtype: str | None,
    kv_type: KVType | None = None,
    kind: str | None = None,
) -> TextModel:
    """Loads a folder (a Path) or a hub id (a str) and puts it behind paged attention.

    `dtype` None means float32 on a CPU, the checkpoint's own elsewhere; `kv_type` None keeps keys and values in
    the same. With a `kind` (or `BY_CONFIGURATION`) it is loaded as a verifier, under that kind's own head if it has
    one. Safetensors only, and no code from the checkpoint. Raises ModelError.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for library in ("transformers", "huggingface_hub", "bitsandbytes", "torchao"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if isinstance(location, Path):
        _check_folder(name, location)
    torch_dtype = _dtype(name, device, dtype)
    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # from_pretrained raises whatever the checkpoint, the network or the disk provoke
        raise ModelError(name, _first_line(error)) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(name, "it has no fast tokenizer (tokenizer.json)")
    if (method := unknown_method(config)) is not None:
        raise ModelError(name, f"transformers does not know its quantization, `{method}`")
    verifier, head = None, None
    if kind is not None:
        kind, verifier, head = _verifier(name, location, kind, config, tokenizer, device)
    try:
        model, info = (AutoModelForCausalLM if head is None else AutoModel).from_pretrained(
            location,
            config=config,
            dtype=torch_dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        model.eval().to(device)
    except Exception as error:
        raise ModelError(name, _first_line(error)) from error
    lacking = sorted(key for key in info["missing_keys"] if key.endswith("weight"))
    if lacking:
        raise ModelError(name, f"its checkpoint lacks {len(lacking)} weights of {type(model).__name__}: {lacking[0]}…")
    try:
        paged = PagedModel(model, kv_type=kv_type, head=head)
    except UnsupportedModel as error:
        raise ModelError(name, f"{type(model).__name__} does not run on the paged engine: {error}") from error
    if hasattr(config, "quantization_config") and (reason := mixed_rows(model)) is not None:
        raise ModelError(name, reason)
    return TextModel(name, tokenizer, paged, _eos(model, tokenizer), kind, verifier)


def score_with(model: TextModel, location: str | Path, kind: str) -> None:
    """Makes a verifier of a model that is loaded. Raises ModelError where it would need another head, or is one."""
    if model.kind is None:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        model.kind, model.verifier, head = _verifier(model.name, location, kind, config, model.tokenizer, "cpu")
        if head is not None:
            model.kind = model.verifier = None
            raise ModelError(model.name, "as a verifier: it is loaded already to generate with, without its own head")
    elif kind not in (BY_CONFIGURATION, model.kind):
        raise ModelError(model.name, f"it is asked for as a verifier of kind {kind}, and it is loaded as {model.kind}")


def _verifier(
    name: str,
    location: str | Path,
    kind: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    device: str,
) -> tuple[str, Verifier, ValueHead | None]:
    try:
        checkpoint = checkpoint_of(location)
        found = kind_of(config, checkpoint, tokenizer) if kind == BY_CONFIGURATION else kind
        head = head_of(found, checkpoint, device) if has_own_head(found) else None
        return found, verifier_of(found, tokenizer, head), head
    except ContextError as error:
        raise ModelError(name, f"as a verifier: {error}") from error


def _check_folder(name: str, folder: Path) -> None:
    if not folder.exists():
        raise ModelError(name, f"there is no folder `{folder}`")
    if not folder.is_dir():
        raise ModelError(name, f"`{folder}` is a file, not a model folder")
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(name, f"`{folder}` has no config.json, so it is no Hugging Face model folder")
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(name, f"`{config}` cannot be read: {_first_line(error)}") from error
    if not any(folder.glob("*.safetensors")):
        raise ModelError(name, f"`{folder}` has no .safetensors file (other weight formats can carry code)")


def _dtype(name: str, device: str, dtype: str | None) -> torch.dtype | str:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(name, "no CUDA device is available here; the device `cpu` always is")
    if dtype is not None:
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    return torch.float32 if device == "cpu" else "auto"


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset(eos if isinstance(eos, (list, tuple)) else [eos])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
