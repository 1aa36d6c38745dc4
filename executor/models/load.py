"""Loading a model folder, a GGUF file, or a hub id that the user named, into a `PagedTextModel`.

The files are checked first (`ModelFolder`); transformers is given these and no others (`isolated`), and may fetch
nothing. What it makes of them is checked too: every weight has its place and every place its weight, and all are
numbers.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder, adapter_error
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError, no_verifier
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.checkpoint.hub_snapshot import adapter_snapshot, cached_snapshot, snapshot
from qpdsl.executor.checkpoint.model_folder import GENERATION_CONFIG, TOKENIZER, ModelFolder, content, isolated, no_hub
from qpdsl.executor.checkpoint.quantization_config import QuantizedLayers
from qpdsl.executor.checkpoint.safe_files import parsed, without_code
from qpdsl.executor.checkpoint.tokenizer_growth import check_growth
from qpdsl.executor.engine.memory.budget import main_memory, trim_heap
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import NativeMismatch, PagedModel
from qpdsl.executor.foreign.bounded_file import MAX_VOCABULARY
from qpdsl.executor.kernels.linear import stored_parameters
from qpdsl.executor.kernels.llvm.large_pages import give_back
from qpdsl.executor.kernels.llvm.panel_file import NotKept
from qpdsl.executor.models.gguf_model import built
from qpdsl.executor.models.gguf_tokenizer import tokenizer as gguf_tokenizer
from qpdsl.executor.models.known_model import DTYPES, KnownModel, Outline, Place, stored_backend
from qpdsl.executor.models.language_part import language_part, writing_class
from qpdsl.executor.models.lora import merge
from qpdsl.executor.models.mapped_files import MappedFiles
from qpdsl.executor.models.quantized_model import NotStored, loaded_stored, mixed_rows, unknown_method
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.quick_tokenizer import TokenizerOutline
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION, named, own_head, recognized
from qpdsl.executor.verifiers.verifier import CheckpointTensors, ModelFiles, Verifier
from qpdsl.grammar.words import VERIFIER_KINDS, KVType

_LIBRARIES = ("transformers", "huggingface_hub", "bitsandbytes", "torchao")
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# The output layer of a language model, which its base model has no place for.
_OUTPUT = ("lm_head.", "embed_out.", "output.")
# A load is written down where main memory would hold the weights so many times.
_TIMES = 6
# What a verifier is asked about when it is loaded.
_PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
_SOLUTION = "Mia has 3 * 4 = 12 cards.\n\nThe answer is 12."


def load(
    name: str,
    location: str | Path,
    device: str,
    dtype: str | None,
    kv_type: KVType | None = None,
    kind: str | None = None,
    adapter: str | Path | None = None,
    slow: Callable[[str], None] | None = None,
    remember: bool = False,
) -> PagedTextModel:
    """Loads a folder or a GGUF file (a Path), or a hub id (a str), and puts it behind paged attention.

    `dtype` None means float32 on a CPU, elsewhere the checkpoint's own type, or bfloat16 for float32; quantized
    weights, of a GGUF file or of safetensors in a format that is read here, then stay on a CPU as they are stored.
    `kv_type` None keeps keys and values in the same type. With a `kind` (or `BY_CONFIGURATION`) the model is loaded as
    a verifier, with that kind's own head if it has one. An `adapter` is merged into it. `slow` is told what takes long
    for once. With `remember`, `quick_load` can start from what this load comes to. Safetensors or GGUF only, from the
    folder only, and no code from the checkpoint.
    Raises ModelError.
    """
    with _opened(name, location, device, dtype, adapter, slow) as loading:
        return loading.model(kv_type, kind, remember=remember)


def load_modules(
    name: str, location: str | Path, device: str, dtype: str | None, adapter: str | Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The modules of a causal language model as transformers runs them, and its tokenizer; arguments as for `load`.

    They have the weights that `load` computes with: quantized ones stay as they are stored where they would there.
    Raises ModelError.
    """
    with _opened(name, location, device, dtype, adapter) as loading:
        return loading.modules()


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """The tokens of a model without the model: its tokenizer, the ids that end its output, and its configuration."""

    tokenizer: PreTrainedTokenizerFast
    eos: frozenset[int]
    config: PretrainedConfig

    @property
    def width(self) -> int:
        """How many ids there are: the length of the model's logits."""
        added = max(self.tokenizer.get_vocab().values(), default=0) + 1
        return max(added, getattr(self.config.get_text_config(), "vocab_size", None) or 0)


def load_tokens(name: str, location: str | Path, slow: Callable[[str], None] | None = None) -> ModelTokens:
    """The tokens of a folder, which needs no weights, of a GGUF file, or of a hub id whose files are in the cache.

    `name` is the model that they are for; `slow` is told what takes long for once. Raises ModelError.
    """
    _quiet()
    path = location if isinstance(location, Path) else cached_snapshot(location)
    if path is None:
        raise ModelError(name, f"`{location}` is no folder, and no hub id whose tokenizer is in the cache")
    try:
        folder = ModelFolder.of(name, path, weights=False)
        with isolated(folder) as files, no_hub():
            return _Loading(name, str(location), folder, files, slow=slow).tokens()
    except OSError as error:
        raise ModelError(name, f"the files of its tokenizer cannot be read: {error}") from error


def load_text_model(name: str, location: str | Path, slow: Callable[[str], None] | None = None) -> TextModel:
    """A model that can encode and decode, and no more; arguments and errors as for `load_tokens`."""
    tokens = load_tokens(name, location, slow)
    positions = getattr(tokens.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
    return TextModel(name, tokens.tokenizer, tokens.eos, positions, tokens.width, writes=False)


def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)


@contextmanager
def _opened(
    name: str,
    location: str | Path,
    device: str,
    dtype: str | None,
    adapter: str | Path | None,
    slow: Callable[[str], None] | None = None,
) -> Iterator[_Loading]:
    """A model whose files are checked, ready to be loaded inside the block."""
    _quiet()
    torch_dtype = _dtype(name, device, dtype)
    folder = ModelFolder.of(name, location if isinstance(location, Path) else snapshot(name, location))
    lora = None
    if adapter is not None:
        path = adapter if isinstance(adapter, Path) else adapter_snapshot(name, adapter)
        lora = AdapterFolder.of(name, path, str(adapter))
    try:
        with isolated(folder) as files, no_hub():
            keep = dtype is None and device == "cpu"
            yield _Loading(name, str(location), folder, files, device, torch_dtype, keep, lora, slow)
    except OSError as error:
        raise ModelError(name, f"its files cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Loading:
    """A model being loaded from `files`, its `folder` in isolation; `origin` is where the user said that it is.

    keep: whether quantized weights stay as they are stored
    """

    name: str
    origin: str
    folder: ModelFolder
    files: Path
    device: str = "cpu"
    dtype: torch.dtype | str = torch.float32
    keep: bool = False
    adapter: AdapterFolder | None = None
    slow: Callable[[str], None] | None = None

    def model(
        self, kv_type: KVType | None, kind: str | None, *, native: bool = True, remember: bool = False
    ) -> PagedTextModel:
        """`native`: see `PagedModel`."""
        config, tokenizer = self._config(), self._tokenizer()
        verifier, head = self._verifier(kind, config, tokenizer)
        # transformers writes into the configuration what it loads in.
        notes = self._notes(config)
        # Tokenizers leave much behind.
        trim_heap()
        # What a package keeps in a form of its own has its configuration.
        model, packaged = self._checked(config, tokenizer, verifier, head)
        held = self.folder.kinds if self.keep and not packaged else None
        if verifier is not None:
            self._check_scores(model, tokenizer, verifier)
        mapped = self._mapped()
        place, outline, writer = None, None, None
        if remember and self.device == "cpu" and self.adapter is None and self.folder.quantized is None:
            place, outline = Place.of(self.folder, self._stored_dtype, kind), Outline.of(model, self.folder)
            writer = None if place is None or outline is None else place.writer(mapped.give_back)
        is_keepable = writer is not None or self._has_room(model)
        if self.slow is not None:
            self.slow("compiling and checking its kernels")
        try:
            with mapped.spared(model):
                paged = PagedModel(model, kv_type=kv_type, head=head, native=native, shelf=writer)
        except NotKept:
            return self.model(kv_type, kind, native=native)
        except NativeMismatch:
            # Its modules are empty by now.
            return self.model(kv_type, kind, native=False)
        except UnsupportedModel as error:
            raise self._error(f"{type(model).__name__} does not run on the paged engine: {error}") from error
        if packaged and (reason := mixed_rows(model)) is not None:
            raise self._error(reason)
        eos = self._eos(getattr(model, "generation_config", None), tokenizer)
        loaded = PagedTextModel.of(self.name, tokenizer, paged, eos, verifier, notes, held)
        is_known = paged.is_compiled and not paged.runs_modules
        if place is not None and outline is not None and is_keepable and is_known:
            own = None if verifier is None else verifier.kind
            trim_heap()
            known = KnownModel(outline, paged.found, own, sorted(eos), self._outlined(tokenizer))
            trim_heap()
            again = place.keep(known, loaded, self.folder, self.files, self._stored_dtype, writer)
            loaded = again or loaded
        if writer is not None:
            writer.drop()
        return loaded

    def _mapped(self) -> MappedFiles:
        """The weights of safetensors that lie where the system has mapped them."""
        is_mapped = self.device == "cpu" and self.folder.gguf is None
        return MappedFiles(map(self.folder.file, self.folder.tensors) if is_mapped else ())

    def _outlined(self, tokenizer: PreTrainedTokenizerFast) -> TokenizerOutline:
        backend = None
        with contextlib.suppress(Exception):  # whatever a file provokes that transformers reads in its own way
            backend = stored_backend(self.folder, self.files)
        return TokenizerOutline.of(tokenizer, backend)

    def _has_room(self, model: PreTrainedModel) -> bool:
        """Whether memory holds the weights three times, to try to load them without transformers' code."""
        floats = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
        return bool((floats + stored_parameters(model)) * _TIMES < main_memory())

    @property
    def _stored_dtype(self) -> torch.dtype | None:
        """The type of floats; None where the weights of a GGUF file stay as they are stored."""
        if self.folder.gguf is not None and self.keep:
            return None
        return torch.bfloat16 if isinstance(self.dtype, str) else self.dtype

    def tokens(self) -> ModelTokens:
        """See `load_tokens`."""
        config = self._config()
        tokenizer = self._tokenizer()
        try:
            if GENERATION_CONFIG in self.folder.files:
                generation = GenerationConfig.from_pretrained(self.files)
            else:
                generation = GenerationConfig.from_model_config(config)
        except Exception as error:  # from_pretrained raises whatever the files provoke
            raise self._error(f"its generation_config.json does not load: {self._reason(error)}") from error
        return ModelTokens(tokenizer, self._eos(generation, tokenizer), config)

    def modules(self) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """See `load_modules`."""
        config, tokenizer = self._config(), self._tokenizer()
        self._verifier(None, config, tokenizer)
        model, _ = self._checked(config, tokenizer, None, None)
        return model, tokenizer

    def _checked(
        self,
        config: PretrainedConfig,
        tokenizer: PreTrainedTokenizerFast,
        verifier: Verifier | None,
        head: ValueHead | None,
    ) -> tuple[PreTrainedModel, bool]:
        """The modules with all their weights, and whether a package keeps these in a form of its own."""
        if self.folder.gguf is None:
            model = self._pretrained(config, head, verifier)
        else:
            model = self._from_gguf(self.folder.gguf, config)
        packaged = hasattr(config, "quantization_config")
        if (wrong := _no_number(model.named_parameters(), self._mapped())) is not None:
            raise self._error(wrong)
        if self.adapter is not None:
            if self.keep and not packaged and self.folder.kinds is not None:
                what = "a GGUF file" if self.folder.gguf is not None else "a quantized checkpoint"
                kept = f"an adapter is merged into floats, and the weights of {what} are kept as they are stored"
                raise adapter_error(self.name, self.adapter.origin, f"{kept}; `--dtype float32` makes floats of them")
            self._merge(model, self.adapter, is_base=head is not None)
        self._check_vocabulary(model, tokenizer)
        return model, packaged

    def _merge(self, model: PreTrainedModel, adapter: AdapterFolder, *, is_base: bool) -> None:
        try:
            merge(model, adapter, is_base=is_base)
        except CheckpointError as error:
            raise adapter_error(self.name, adapter.origin, str(error)) from error

    def _narrows(self, config: PretrainedConfig) -> bool:
        """Whether a checkpoint in float32 runs in bfloat16, as nobody asked for a type: ten times as fast on a GPU."""
        if not isinstance(self.dtype, str) or self.folder.gguf is not None or hasattr(config, "quantization_config"):
            return False
        told = config.get_text_config().dtype or config.dtype
        if told is None:
            tensors = CheckpointTensors(self.folder)
            told = tensors.tensor(next(iter(self.folder.tensors))).dtype
        return told in (torch.float32, "float32")

    def _notes(self, config: PretrainedConfig) -> tuple[str, ...]:
        """What the user may want to know of the model besides."""
        notes = [*self.folder.notes]
        if self._narrows(config):
            notes.append("its weights are float32 and it runs in bfloat16; `--dtype float32` keeps them, far slower")
        base = None if self.adapter is None else self.adapter.config.base
        # A copy of a model keeps the last part of its name.
        if self.adapter is not None and base and Path(base).name.lower() != Path(self.origin).name.lower():
            notes.append(f"adapter `{self.adapter.origin}` was made for `{base}`, and is on `{self.origin}` here")
        return tuple(notes)

    def _eos(self, generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
        eos = getattr(generation, "eos_token_id", None)
        if eos is None:
            eos = tokenizer.eos_token_id
        ids = eos if isinstance(eos, (list, tuple)) else [] if eos is None else [eos]
        if any(type(id) is not int for id in ids):
            raise self._error(f"its generation_config.json has the eos_token_id {eos!r}, which is no token id")
        return frozenset(ids)

    def _config(self) -> PretrainedConfig:
        model_type = without_code(self.folder.config).get("model_type")
        if model_type not in CONFIG_MAPPING:
            known = f"transformers {transformers.__version__} does not know, and code of a checkpoint is not run"
            what = "names no model_type" if model_type is None else f"has the model_type `{model_type}`, which {known}"
            raise self._error(f"its config.json {what}")
        try:
            config = AutoConfig.from_pretrained(self.files, trust_remote_code=False)
        except Exception as error:  # from_pretrained raises whatever the files provoke
            raise self._error(f"its config.json does not make a configuration: {self._reason(error)}") from error
        # Transformers knows some models by their ids.
        config._name_or_path = self.origin
        if (method := unknown_method(config)) is not None:
            raise self._error(f"transformers does not know its quantization, `{method}`")
        return config

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        if self.folder.gguf is not None:
            return self._gguf_tokenizer(self.folder.gguf)
        try:
            if TOKENIZER in self.folder.files:
                check_growth(parsed(TOKENIZER, content(self.folder.path, TOKENIZER, MAX_VOCABULARY)))
        except CheckpointError as error:
            raise self._error(str(error)) from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.files, config=self._config(), trust_remote_code=False)
        except Exception as error:
            if TOKENIZER in self.folder.files:
                try:
                    Tokenizer.from_file(str(self.files / TOKENIZER))
                except Exception as broken:
                    raise self._error(f"`{TOKENIZER}` is broken: {self._reason(broken)}") from broken
            raise self._error(f"its tokenizer does not load: {self._reason(error)}") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise self._error(f"it has no fast tokenizer (`{TOKENIZER}`)")
        return tokenizer

    def _gguf_tokenizer(self, gguf: GGUFModel) -> PreTrainedTokenizerFast:
        def first_time() -> None:
            if self.slow is not None:
                self.slow("first time: reading its tokenizer")

        try:
            return gguf_tokenizer(gguf.header, first_time)
        except CheckpointError as error:
            raise self._error(str(error)) from error

    def _from_gguf(self, gguf: GGUFModel, config: PretrainedConfig) -> PreTrainedModel:
        try:
            return built(gguf, config, self._stored_dtype, self.device)
        except CheckpointError as error:
            raise self._error(str(error)) from error
        except Exception as error:  # transformers raises whatever the settings provoke
            raise self._error(f"its settings do not make a model: {self._reason(error)}") from error

    def _verifier(
        self, kind: str | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> tuple[Verifier | None, ValueHead | None]:
        tensors = CheckpointTensors(self.folder)
        told = recognized(ModelFiles(config, tensors, tokenizer))
        if kind is None:
            if told is not None:
                raise self._error(f"it is a verifier of kind {told.kind}, which writes no text; `score` takes it")
            return None, None
        if kind == BY_CONFIGURATION and told is None:
            raise no_verifier(self.name, VERIFIER_KINDS)
        if told is not None and kind not in (BY_CONFIGURATION, told.kind):
            raise self._error(f"it is asked for as a verifier of kind {kind}, and its files say kind {told.kind}")
        try:
            verifier = told or named(kind)
            head = own_head(verifier, tensors, self.device)
            width = None if head is None else head.width
            return verifier(tokenizer, width, getattr(config.get_text_config(), "pad_token_id", None)), head
        except ContextError as error:
            raise self._error(f"as a verifier: {error}") from error

    def _pretrained(
        self, config: PretrainedConfig, head: ValueHead | None, verifier: Verifier | None
    ) -> PreTrainedModel:
        """The layers of the checkpoint, with every weight that they have and no other, on the device.

        What is read as it is stored leaves no quantization in the `config`.
        """
        architecture = writing_class(config) if head is None else AutoModel
        if architecture is None:
            raise self._error(f"transformers has no model of its model_type, `{config.model_type}`, that writes text")
        layers, stored = getattr(config.get_text_config(), "num_hidden_layers", 0), len(self.folder.tensors)
        if isinstance(layers, int) and layers > stored:
            # Making them would take long, before each of them is found missing.
            raise self._error(f"its files have {stored:,} tensors, too few for {layers:,} layers")

        dtype = torch.bfloat16 if self._narrows(config) else self.dtype

        def loaded(config: PretrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
            model, info = architecture.from_pretrained(
                self.files,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                # They are told below, with their shapes.
                ignore_mismatched_sizes=True,
            )
            return model, info

        # On a GPU the packages have kernels.
        quantized = self.folder.quantized if self.device == "cpu" else None
        try:
            model, info = self._stored(loaded, config, quantized) or loaded(config)
            part = language_part(model.eval()).to(self.device)
        except Exception as error:
            reason = self._reason(error)
            if "above report" in reason:
                reason = "its weights cannot be put into the form that its architecture has"
            raise self._error(reason) from error
        self._check_weights(model, info, None if verifier is None else verifier.head)
        return part

    def _stored(
        self,
        load: Callable[[PretrainedConfig], tuple[PreTrainedModel, dict[str, Any]]],
        config: PretrainedConfig,
        layers: QuantizedLayers | None,
    ) -> tuple[PreTrainedModel, dict[str, Any]] | None:
        """What `load` makes with quantized weights as they are stored; None where that cannot be."""
        if layers is None:
            return None
        given = config.quantization_config
        floats = self.dtype if isinstance(self.dtype, torch.dtype) and not self.keep else None
        try:
            found = loaded_stored(load, config, layers, self.folder, floats)
        except NotStored:
            config.quantization_config = given
            return None
        del config.quantization_config
        return found

    def _check_weights(self, model: PreTrainedModel, info: dict[str, Any], head: str | None) -> None:
        """Refuses weights that are missing, are of another shape, or have no place in the model."""
        architecture = type(model).__name__
        if info["mismatched_keys"]:
            key, stored, wanted = sorted(info["mismatched_keys"], key=lambda entry: str(entry[0]))[0]
            shapes = f"has the shape {_shape(stored)}, and config.json makes it {_shape(wanted)}"
            raise self._error(f"`{key}` {shapes}{_and_others(len(info['mismatched_keys']) - 1)}")
        quantized = hasattr(model.config, "quantization_config")
        # A quantized checkpoint has numbers of its own beside the weights, which the package that wrote it looks after.
        missing = sorted(key for key in info["missing_keys"] if not quantized or key.endswith(("weight", "bias")))
        if missing:
            raise self._error(f"its files lack `{missing[0]}` of {architecture}{_and_others(len(missing) - 1)}")
        own = () if head is None else (f"{head}.", *_OUTPUT)
        foreign = sorted(key for key in info["unexpected_keys"] if not quantized and not key.startswith(own))
        if foreign:
            others = _and_others(len(foreign) - 1)
            raise self._error(f"its files have `{foreign[0]}`, for which {architecture} has no place{others}")

    def _check_vocabulary(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        """Refuses a tokenizer of another model. The engine itself refuses added tokens that a model does not know."""
        rows = model.get_input_embeddings().num_embeddings
        added = tokenizer.added_tokens_decoder
        learned = ((id, token) for token, id in tokenizer.get_vocab().items() if id not in added)
        last, token = max(learned, default=(-1, ""))
        if last >= rows:
            raise self._error(f"its tokenizer gives `{token}` the id {last}, and it has embeddings for {rows} ids")

    @torch.inference_mode()
    def _check_scores(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, verifier: Verifier) -> None:
        """Refuses a verifier that cannot be shown a solution, or whose answer to one is no judgement."""
        try:
            reads = verifier.reads(_PROBLEM, _SOLUTION)
        except ContextError as error:
            raise self._error(f"as a verifier: {error}") from error
        if reads is None or verifier.head is not None:
            return
        logits = model(input_ids=torch.tensor([reads.tokens], device=model.device), use_cache=False).logits[0]
        for token in logits[list(reads.positions)].argmax(dim=-1).tolist():
            if token not in reads.ids:
                signs = " or ".join(f"`{tokenizer.decode([id]).strip()}`" for id in reads.ids)
                answer = tokenizer.decode([token])
                raise self._error(
                    f"a verifier of kind {verifier.kind} answers {signs} after a step, and this model answers "
                    f"{answer!r}: it is no reward model of this kind"
                )

    def _error(self, reason: str) -> ModelError:
        return ModelError(self.name, reason)

    def _reason(self, error: Exception) -> str:
        """The first line of an error, with the model's own folder in the place of the isolated one."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0].replace(str(self.files), str(self.folder.path)) if lines else type(error).__name__


def _dtype(name: str, device: str, dtype: str | None) -> torch.dtype | str:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(name, "no CUDA device is available here; the device `cpu` always is")
    if dtype is not None:
        return DTYPES[dtype]
    return torch.float32 if device == "cpu" else "auto"


@torch.inference_mode()
def _ends(values: torch.Tensor, mapped: MappedFiles) -> torch.Tensor:
    """The smallest and the largest number, float64 [2]; what lies in files goes from memory."""
    ends = torch.stack(values.aminmax()).double()
    if mapped.holds(values):
        give_back(values)
    return ends


def _no_number(parameters: Iterable[tuple[str, torch.nn.Parameter]], mapped: MappedFiles) -> str | None:
    """Which weights hold NaN or infinity, in words; None where none does."""
    # What another library keeps in a form of its own is its own affair.
    plain = ((name, tensor) for name, tensor in parameters if type(tensor.data) is torch.Tensor)
    named = [(name, tensor) for name, tensor in plain if tensor.dtype in _NUMBERS and tensor.numel()]
    if not named:
        return None
    # One pass over each tensor, and one wait for the device: the smallest and the largest number show both.
    ends = torch.stack([_ends(tensor, mapped) for _, tensor in named])
    wrong = (~ends.isfinite().all(dim=1)).nonzero()[:, 0].tolist()
    if not wrong:
        return None
    what = "NaN" if ends[wrong[0]].isnan().any() else "infinity"
    return f"`{named[wrong[0]][0]}` holds {what}{_and_others(len(wrong) - 1)}; its weights are damaged"


def _shape(shape: Iterable[int]) -> str:
    return "×".join(str(width) for width in shape) or "()"


def _and_others(count: int) -> str:
    return f" (and {count:,} other{'s' if count > 1 else ''})" if count else ""
