"""Loading a model folder, or a hub id that the user named, into a `PagedTextModel`.

A quantized checkpoint is read by transformers with the package that wrote it. It is refused where transformers does not
know its method, or where a row of a layer's result depends on the other rows: a sample would then change with whatever
else is in its batch.
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
from qpdsl.executor.models.text_model import ModelError, PagedTextModel, TextModel
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.checkpoint import CheckpointTensors
from qpdsl.executor.verifiers.registry import named, own_head, recognized
from qpdsl.executor.verifiers.verifier import ModelFiles, Verifier

# In the place of a kind: a verifier of the kind that the model's own files tell.
BY_CONFIGURATION = "by configuration"
_LIBRARIES = ("transformers", "huggingface_hub", "bitsandbytes", "torchao")
# The rows by which a layer is tried for mixing them.
_ROWS = 16
# Larger than the numbers that quantizers set apart (LLM.int8 does from 6 on), and than any scale of the other rows.
_LARGE = 1000.0


def load(
    name: str,
    location: str | Path,
    device: str,
    dtype: str | None,
    kv_type: KVType | None = None,
    kind: str | None = None,
) -> PagedTextModel:
    """Loads a folder (a Path) or a hub id (a str) and puts it behind paged attention.

    `dtype` None means float32 on a CPU, the checkpoint's own type elsewhere; `kv_type` None keeps keys and values in
    the same type. With a `kind` (or `BY_CONFIGURATION`) the model is loaded as a verifier, with that kind's own head if
    it has one. Safetensors only, and no code from the checkpoint. Raises ModelError.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)
    if isinstance(location, Path):
        _check_folder(name, location)
    torch_dtype = _dtype(name, device, dtype)
    config, tokenizer = _config_and_tokenizer(name, location)
    verifier, head = None, None
    if kind is not None:
        verifier, head = _verifier(name, location, kind, config, tokenizer, device)
    model = _pretrained(
        name, location, AutoModelForCausalLM if head is None else AutoModel, config, torch_dtype, device
    )
    try:
        paged = PagedModel(model, kv_type=kv_type, head=head)
    except UnsupportedModel as error:
        raise ModelError(name, f"{type(model).__name__} does not run on the paged engine: {error}") from error
    if hasattr(config, "quantization_config") and (reason := mixed_rows(model)) is not None:
        raise ModelError(name, reason)
    return PagedTextModel.of(name, tokenizer, paged, _eos(model, tokenizer), verifier)


def score_with(model: TextModel, location: str | Path, kind: str) -> None:
    """Makes a verifier of a loaded model. Raises ModelError where it is one of another kind, or needs a head."""
    if model.verifier is None:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        verifier, head = _verifier(model.name, location, kind, config, model.tokenizer, "cpu")
        if head is not None:
            raise ModelError(model.name, "as a verifier: it is loaded already to generate with, without its own head")
        model.verifier = verifier
    elif kind not in (BY_CONFIGURATION, model.kind):
        raise ModelError(model.name, f"it is asked for as a verifier of kind {kind}, and it is loaded as {model.kind}")


def _config_and_tokenizer(name: str, location: str | Path) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # from_pretrained raises whatever the checkpoint, the network or the disk provoke
        raise ModelError(name, _first_line(error)) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(name, "it has no fast tokenizer (tokenizer.json)")
    if (method := _unknown_method(config)) is not None:
        raise ModelError(name, f"transformers does not know its quantization, `{method}`")
    return config, tokenizer


def _pretrained(
    name: str,
    location: str | Path,
    architecture: type[AutoModel] | type[AutoModelForCausalLM],
    config: PretrainedConfig,
    dtype: torch.dtype | str,
    device: str,
) -> PreTrainedModel:
    """The layers of the checkpoint, with every weight that they have, on `device`."""
    try:
        model, info = architecture.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        model.eval().to(device)
    except Exception as error:
        raise ModelError(name, _first_line(error)) from error
    missing = sorted(key for key in info["missing_keys"] if key.endswith("weight"))
    if missing:
        raise ModelError(name, f"its checkpoint lacks {len(missing)} weights of {type(model).__name__}: {missing[0]}…")
    loaded: PreTrainedModel = model
    return loaded


def _verifier(
    name: str,
    location: str | Path,
    kind: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    device: str,
) -> tuple[Verifier, ValueHead | None]:
    try:
        tensors = CheckpointTensors.of(location)
        verifier = recognized(ModelFiles(config, tensors, tokenizer)) if kind == BY_CONFIGURATION else named(kind)
        head = own_head(verifier, tensors, device)
        return verifier(tokenizer, head), head
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


def _unknown_method(config: PretrainedConfig) -> str | None:
    """The quantization method that transformers does not know; None where it knows it or there is none.

    Transformers would take the stored numbers for weights.
    """
    quantization: Any = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    options = quantization if isinstance(quantization, dict) else quantization.to_dict()
    if options.get("load_in_8bit") or options.get("load_in_4bit"):
        return None
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method")))
    return None if method in AUTO_QUANTIZATION_CONFIG_MAPPING else method


@torch.inference_mode()
def mixed_rows(model: PreTrainedModel) -> str | None:
    """Which linear layers make a row's result depend on the other rows of its batch, in words; None where none does.

    One layer of each type and shape is tried. Layers without parameters, whose weights were packed elsewhere, are not.
    """
    tried = set[tuple[Any, ...]]()
    for module in model.modules():
        width = getattr(module, "in_features", None)
        stored = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        tensors = [tensor for tensor in stored if tensor.numel()]
        if not isinstance(width, int) or not tensors:
            continue
        kind = (type(module), type(tensors[0]), width, getattr(module, "out_features", None))
        if kind not in tried and _mixes(module, width, model.dtype, tensors[0].device):
            name = type(module).__name__
            hint = " (they do not where its llm_int8_threshold is 0)" if name == "Linear8bitLt" else ""
            return f"what its {name} layers make of a token depends on what else is in the batch{hint}"
        tried.add(kind)
    return None


def _mixes(layer: torch.nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the results of the first half of some rows change where the second half is large."""
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    others = rows.clone()
    others[_ROWS // 2 :] *= _LARGE
    half = slice(_ROWS // 2)
    return not torch.equal(layer(rows)[half], layer(others)[half])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
