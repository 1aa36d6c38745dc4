"""Loading a model folder, or a hub id that the user named, into a `TextModel`."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qpdsl.executor.decoding.constraint import Constrainer
from qpdsl.executor.decoding.spelling import Spelling
from qpdsl.executor.engine.kv import KVType
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.unsupported import UnsupportedModel
from qpdsl.executor.engine.value_head import ValueHead
from qpdsl.executor.reward.verifier import Verifier
from qpdsl.executor.runtime.context import ContextError
from qpdsl.executor.runtime.quantized import mixed_rows, unknown_method
from qpdsl.executor.runtime.verifiers import checkpoint_of, has_own_head, head_of, kind_of, verifier_of

# As a verifier of the kind that its own files tell.
BY_CONFIGURATION = "by configuration"


class ModelError(Exception):
    """A model that cannot be loaded or used; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model `{name}` cannot be loaded: {reason}")


@dataclass
class TextModel:
    """A paged model with its tokenizer, and how it scores where it was loaded as a verifier of some `kind`."""

    name: str
    tokenizer: PreTrainedTokenizerFast
    paged: PagedModel
    eos: frozenset[int]
    kind: str | None = None
    verifier: Verifier | None = None

    @property
    def writes(self) -> bool:
        """Whether it can generate: a reward model's head has no words."""
        return not isinstance(self.paged.head, ValueHead)

    @cached_property
    def backend(self) -> Tokenizer:
        """The Rust tokenizer behind the transformers one."""
        backend: Tokenizer = self.tokenizer.backend_tokenizer
        return backend

    @cached_property
    def spelling(self) -> Spelling:
        """Decodes tokens as they are drawn."""
        return Spelling(self.backend)

    @cached_property
    def pieces(self) -> dict[int, str]:
        """The text of tokens that have been shown one by one."""
        return {}

    @cached_property
    def constrainer(self) -> Constrainer:
        """Compiles constraints for this model's tokens. Raises ConstraintError."""
        return Constrainer(self.tokenizer, self.paged.head.width, self.eos)

    def encode(self, text: str) -> list[int]:
        """Token ids of generated text: no special token comes of it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def encode_after(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Token ids of text that goes on after `tokens`, such that both together decode to the text of both.

        Some tokenizers put a space before whatever they encode; behind an anchor they do not.
        """
        wanted = self.decode(tokens) + text
        alone = tuple(self.encode(text))
        if self.decode(tokens + alone) == wanted:
            return alone
        anchor = self.encode("a")
        anchored = tuple(self.encode("a" + text)[len(anchor) :])
        return anchored if self.decode(tokens + anchored) == wanted else alone

    def decode(self, tokens: tuple[int, ...]) -> str:
        """The text of generated tokens, without special ones."""
        return self.backend.decode(list(tokens), skip_special_tokens=True)


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
