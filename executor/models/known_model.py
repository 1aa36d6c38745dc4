"""Models that were loaded before, without transformers' code.

To import a model's code, to build its modules and to try whether compiled layers give their logits takes seconds, and
gives the same for the same files. So a load writes down what it came to: the modules' names and settings, but no
weights, and what the trial found. The next load makes modules without code of it, which compiled layers are laid out
from. It is written only where a model that was made from it has the same hidden states and logits, bit by bit.

Weights of safetensors that are floats, and of GGUF files; on a CPU, without an adapter.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers
import torch
from tokenizers import Tokenizer

from qpdsl.executor.checkpoint.cache_folder import cache_folder, keep_file, opened
from qpdsl.executor.checkpoint.model_digest import model_digest
from qpdsl.executor.checkpoint.model_folder import TOKENIZER, ModelFolder, isolated, no_hub
from qpdsl.executor.engine.memory.budget import trim_heap
from qpdsl.executor.engine.model.kept import KeptKV
from qpdsl.executor.engine.model.module_stack import AttentionCall
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model.probe import TrialFindings
from qpdsl.executor.kernels.data.weights import Weight
from qpdsl.executor.kernels.linear import LateWeight, StoredEmbedding, StoredExperts, StoredLinear
from qpdsl.executor.kernels.llvm.compile import digest_of_sources, surroundings
from qpdsl.executor.models.gguf_model import StoredTensors
from qpdsl.executor.models.gguf_tokenizer import kept_backend
from qpdsl.executor.models.gguf_tokenizer import tokenizer as gguf_tokenizer
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.text.quick_tokenizer import QuickTokenizer, TokenizerOutline
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.registry import named, own_head
from qpdsl.executor.verifiers.verifier import CheckpointTensors
from qpdsl.grammar.words import KVType

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# By the names that safetensors has for them.
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_BYTES = 4 << 20
# Models whose records are kept; of more, those that were read the longest ago go.
_MAX_MODELS = 64
_SCALARS = (bool, int, float, str, type(None))
# Of transformers' modules: how they are used, and where they were read from.
_NOT_OF_THE_MODEL = ("training", "name_or_path")
# A buffer of more numbers is a table, which a module without code cannot need.
_MAX_NUMBERS = 1024


@dataclass(frozen=True, slots=True)
class ModuleOutline:
    """A module of a model, without its code and weights.

    settings: plain attributes
    tensors:  where its parameters come from: names of tensors of the checkpoint
    buffers:  small buffers: the name of the type, the shape and the numbers
    stored:   where the weights come from that it holds as the checkpoint has them
    """

    path: str
    kind: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, str]
    buffers: Mapping[str, tuple[str, list[int], list[float]]]
    stored: str | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """The modules of a model, and what its own class says of it. `ends`: the paths of its embedding and its head."""

    config: Mapping[str, Any]
    text_config: Mapping[str, Any]
    prefix: str
    ends: tuple[str | None, str | None]
    parameters: int
    modules: list[ModuleOutline]

    @classmethod
    def of(cls, model: Any, folder: ModelFolder) -> Outline | None:
        """That of transformers' modules with their weights; None where a module has what cannot be written down."""
        tensors = folder.tensors if folder.gguf is None else folder.gguf.tensors
        sources: dict[int, str] = {}
        for name, parameter in model.named_parameters():
            prefix = model.base_model_prefix
            places = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
            source = next((place for place in places if place in tensors), None)
            if source is None or (
                folder.gguf is not None and folder.gguf.tensors[source].shape != tuple(parameter.shape)
            ):
                return None
            sources[id(parameter)] = source
        stored: dict[int, str] = {}
        modules = []
        for path, module in model.named_modules():
            if isinstance(module, StoredExperts):
                return None
            settings = {name: value for name, value in vars(module).items() if _is_plain(name, value)}
            held = None
            if isinstance(module, StoredLinear | StoredEmbedding):
                held = stored.setdefault(id(module.stored), f"{path}.weight")
            buffers = dict(module.named_buffers(recurse=False))
            if isinstance(module, StoredLinear):
                buffers = {}
            if held is not None and held not in tensors:
                return None
            if any(buffer.numel() > _MAX_NUMBERS or not buffer.is_floating_point() for buffer in buffers.values()):
                return None
            own = {name: sources[id(parameter)] for name, parameter in module.named_parameters(recurse=False)}
            numbers = {name: _numbers(buffer) for name, buffer in buffers.items()}
            modules.append(ModuleOutline(path, type(module).__name__, settings, own, numbers, held))
        paths = {id(module): path for path, module in model.named_modules()}
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        return cls(
            _settings(model.config),
            _settings(model.config.get_text_config()),
            model.base_model_prefix,
            (paths.get(id(ends[0])), paths.get(id(ends[1]))),
            model.num_parameters(),
            modules,
        )


def _is_plain(name: str, value: Any) -> bool:
    if name.startswith("_") or name in _NOT_OF_THE_MODEL:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and isinstance(part, _SCALARS) for key, part in value.items())
    return isinstance(value, _SCALARS)


def _numbers(buffer: torch.Tensor) -> tuple[str, list[int], list[float]]:
    return str(buffer.dtype).removeprefix("torch."), list(buffer.shape), buffer.flatten().tolist()


def _settings(config: Any) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    # Among the others is the folder that it was read from.
    return {name: value for name, value in settings.items() if not name.startswith("_")}


class _Config(SimpleNamespace):
    """A configuration without its class."""

    def __init__(self, settings: Mapping[str, Any], text: Mapping[str, Any] | None = None) -> None:
        super().__init__(**settings)
        self._text = None if text is None else _Config(text)

    def get_text_config(self) -> _Config:
        return self._text or self


class _Rotary(torch.nn.Module):
    """A position encoding whose frequencies do not change."""

    def forward(
        self, like: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [B, T, dim] of positions int64 [B, T], as transformers computes them."""
        kind = "" if layer_type is None else f"{layer_type}_"
        frequencies, scaling = getattr(self, f"{kind}inv_freq"), getattr(self, f"{kind}attention_scaling")
        angles = (frequencies[None, :, None].float() @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * scaling, angles.sin() * scaling


class KnownModules(torch.nn.Module):
    """The modules of an outline with their weights, of which nothing but their parts is asked.

    Only what `PagedModel` needs of a model whose trial is known.
    """

    def __init__(self, outline: Outline, folder: ModelFolder, dtype: torch.dtype | None) -> None:
        """`dtype`: of floats; None where weights of a GGUF file stay as they are stored.

        Raises whatever an outline that is not the folder's provokes.
        """
        super().__init__()
        self.config = _Config(outline.config, outline.text_config)
        self.base_model_prefix = outline.prefix
        self.device, self.dtype = torch.device("cpu"), dtype or torch.float32
        self._count = outline.parameters
        weights = _Weights(folder, dtype)
        for module in outline.modules:
            made = self if not module.path else weights.module(module)
            if module.path:
                owner, _, name = module.path.rpartition(".")
                self.get_submodule(owner).add_module(name, made)
            for name, value in module.settings.items():
                setattr(made, name, value)
            for name, source in module.tensors.items():
                made.register_parameter(name, torch.nn.Parameter(weights.floats(source), requires_grad=False))
            for name, (kind, shape, numbers) in module.buffers.items():
                made.register_buffer(name, torch.tensor(numbers, dtype=getattr(torch, kind)).view(shape))
        embedding, head = outline.ends
        self._ends = [None if path is None else self.get_submodule(path) for path in (embedding, head)]

    def num_parameters(self) -> int:
        return self._count

    def get_input_embeddings(self) -> torch.nn.Module | None:
        return self._ends[0]

    def get_output_embeddings(self) -> torch.nn.Module | None:
        return self._ends[1]


class _MappedTensors:
    """The tensors of a safetensors file where they lie in it: after a length, and JSON with the place of each name.

    Raises whatever a file that is none provokes.
    """

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        self._begin = 8 + int(self._bytes[:8].view(torch.int64))
        self._places = json.loads(bytes(self._bytes[8 : self._begin].numpy()))

    def tensor(self, name: str) -> torch.Tensor:
        place = self._places[name]
        first, last = (self._begin + offset for offset in place["data_offsets"])
        return self._bytes[first:last].view(_TYPES[place["dtype"]]).view(place["shape"])


class _Weights:
    """The weights of a model folder by their names there; what has one name is one tensor."""

    def __init__(self, folder: ModelFolder, dtype: torch.dtype | None) -> None:
        self._folder, self._dtype = folder, dtype
        self._gguf = None if folder.gguf is None else StoredTensors(folder.gguf)
        self._maps: dict[Path, _MappedTensors] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._stored: dict[str, Weight] = {}

    def module(self, module: ModuleOutline) -> torch.nn.Module:
        if module.stored is not None:
            bias = f"{module.path}.bias"
            if module.kind == "StoredEmbedding":
                return StoredEmbedding(self.stored(module.stored), module.settings["scale"])
            has_bias = self._gguf is not None and bias in self._gguf.named
            own = self.floats(bias).float() if has_bias else None
            # An embedding's comes first, and is shared.
            if module.stored in self._stored or self._gguf is None:
                return StoredLinear(self.stored(module.stored), own)
            shape = torch.Size(self._gguf.named[module.stored].shape)
            read = partial(self._gguf.late_weight, module.stored, shape)
            return StoredLinear(LateWeight((shape[0], shape[1]), read), own)
        if module.kind == "Linear":
            linear = torch.nn.Linear(1, 1, bias="bias" in module.tensors, device="meta")
            linear.is_mapped = self._is_mapped(module.tensors["weight"])  # type: ignore[assignment]
            return linear
        if module.kind == "ModuleList":
            return torch.nn.ModuleList()
        if module.kind.endswith("RotaryEmbedding"):
            return _Rotary()
        if module.kind in ("Dropout", "Identity"):
            return torch.nn.Identity()
        # What a module is, is told by the name of its class.
        alike: torch.nn.Module = type(module.kind, (torch.nn.Module,), {})()
        if module.kind == "Conv1d":
            # It need not have one.
            alike.register_parameter("bias", None)
        return alike

    def stored(self, name: str) -> Weight:
        assert self._gguf is not None
        if name not in self._stored:
            self._stored[name] = self._gguf.weight(name, torch.Size(self._gguf.named[name].shape))
        return self._stored[name]

    def _is_mapped(self, name: str) -> bool:
        """Whether floats of that name lie in their file's pages, not having been of another type there."""
        return self._gguf is None and self._mapped(name).dtype == self._dtype

    def _mapped(self, name: str) -> torch.Tensor:
        file = self._folder.file(name)
        if file not in self._maps:
            self._maps[file] = _MappedTensors(file)
        return self._maps[file].tensor(name)

    def floats(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            if self._gguf is not None:
                found = self._gguf.floats(name, torch.Size(self._gguf.named[name].shape))
            else:
                found = self._mapped(name)
            self._tensors[name] = found.to(self._dtype or torch.float32)
        return self._tensors[name]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """All that a load came to. `kind`: of verifier, None where it writes."""

    outline: Outline
    found: TrialFindings
    kind: str | None
    eos: list[int]
    tokenizer: TokenizerOutline

    @classmethod
    def from_json(cls, said: Any) -> KnownModel:
        """Raises whatever JSON that is no known model provokes."""
        outline, kept = said["outline"], said["found"]["kept"]
        calls = [
            AttentionCall(**{**call, "shape": tuple(call["shape"]), "others": tuple(call["others"])})
            for call in said["found"]["calls"]
        ]
        windows = {int(layer): window for layer, window in kept["windows"].items()}
        found = TrialFindings(KeptKV(windows), calls)
        modules = [ModuleOutline(**module) for module in outline["modules"]]
        return cls(
            Outline(**{**outline, "ends": tuple(outline["ends"]), "modules": modules}),
            found,
            said["kind"],
            said["eos"],
            TokenizerOutline(**said["tokenizer"]),
        )

    def loaded(
        self, name: str, folder: ModelFolder, files: Path, dtype: torch.dtype | None, kv_type: KVType | None
    ) -> PagedTextModel:
        """The model again. `files`: the folder in isolation. Raises whatever a record that is not its provokes."""
        tokenizer = _tokenizer(self.tokenizer, folder, files)
        # Or it would add to the most that a load takes.
        trim_heap()
        modules: Any = KnownModules(self.outline, folder, dtype)
        verifier, head = None, None
        if self.kind is not None:
            kind = named(self.kind)
            head = own_head(kind, CheckpointTensors(folder), "cpu")
            padding = getattr(modules.config.get_text_config(), "pad_token_id", None)
            verifier = kind(tokenizer, None if head is None else head.width, padding)
        paged = PagedModel(modules, kv_type=kv_type, head=head, found=self.found)
        held = folder.kinds if dtype is None else None
        return PagedTextModel.of(name, tokenizer, paged, frozenset(self.eos), verifier, folder.notes, held)


def _tokenizer(outline: TokenizerOutline, folder: ModelFolder, files: Path) -> TextTokenizer:
    """The tokenizer of a model. Raises whatever an outline that is not the folder's provokes."""
    backend = stored_backend(folder, files) if outline.is_quick else None
    if backend is None:
        return known_tokenizer(outline.kind, folder, files)

    def original() -> TextTokenizer:
        # The folder may not be the isolated one any more.
        with isolated(folder) as files:
            return known_tokenizer(outline.kind, folder, files)

    return QuickTokenizer(outline, backend, original)


def stored_backend(folder: ModelFolder, files: Path) -> Tokenizer | None:
    """The Rust tokenizer that lies in a model's folder, or was kept of its GGUF file. Raises what its file provokes."""
    if folder.gguf is not None:
        return kept_backend(folder.gguf.header)
    return Tokenizer.from_file(str(files / TOKENIZER)) if TOKENIZER in folder.files else None


def known_tokenizer(name: str, folder: ModelFolder, files: Path) -> TextTokenizer:
    """The tokenizer of a model, of which `name` is its class. `files`: the folder in isolation.

    Raises whatever a class that is not its own provokes.
    """
    import transformers

    with no_hub():
        if folder.gguf is not None:
            made: TextTokenizer = gguf_tokenizer(folder.gguf.header)
        else:
            own = getattr(transformers, name)
            assert issubclass(own, transformers.PreTrainedTokenizerFast)
            made = own.from_pretrained(files, trust_remote_code=False)
    return made


def _key(folder: ModelFolder, dtype: torch.dtype | None, kind: str | None) -> str:
    """What a record depends on: every file of the model, the libraries, this code and the processor."""
    states = [(name, (folder.path / name).stat().st_mtime_ns) for name in sorted(folder.files)]
    parts = (model_digest(folder), states, dtype, kind, _libraries(), surroundings())
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


@cache
def _libraries() -> tuple[str, ...]:
    sources = Path(__file__).parents[1]
    own = [digest_of_sources(sources / part) for part in ("checkpoint", "engine/model", "models", "text", "verifiers")]
    return version("transformers"), tokenizers.__version__, torch.__version__, *own


def known(folder: ModelFolder, dtype: torch.dtype | None, kind: str | None) -> KnownModel | None:
    """What is known of a model with floats of `dtype` that is asked for as a verifier of a `kind`, or as none.

    None where nothing is, or where it cannot be read.
    """
    place = _place(folder, dtype, kind)
    if place is None:
        return None
    try:
        with open(opened(place, os.O_RDONLY), "rb") as file:
            said = KnownModel.from_json(json.loads(file.read(_MAX_BYTES)))
        os.utime(place)
        return said
    except Exception:  # whatever a damaged file provokes
        return None


def keep(
    model: KnownModel,
    first: PagedTextModel,
    folder: ModelFolder,
    files: Path,
    dtype: torch.dtype | None,
    kind: str | None,
) -> None:
    """Writes down what the `first` load came to, if a model that is made from it has the same tokens and bits."""
    place = _place(folder, dtype, kind)
    if place is None:
        return
    try:
        again = model.loaded(first.name, folder, files, dtype, first.paged.layout.kv_type)
    except Exception:  # what cannot be made from a record is loaded as it was now
        return
    content = json.dumps(asdict(model))
    if not _is_same(again, first) or len(content) > _MAX_BYTES:
        return
    keep_file(place, content.encode())
    with contextlib.suppress(OSError):
        by_age = sorted(place.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in by_age[_MAX_MODELS:]:
            old.unlink(missing_ok=True)


def _place(folder: ModelFolder, dtype: torch.dtype | None, kind: str | None) -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / "models" / f"{_key(folder, dtype, kind)}.json"


def _is_same(again: PagedTextModel, first: PagedTextModel) -> bool:
    """Whether two loads have the same tokens, and the same bits for some of them."""
    texts = [
        (model.eos, model.backend.to_str(), model.tokenizer.chat_template, model.tokenizer.special_tokens_map)
        for model in (again, first)
    ]
    return texts[0] == texts[1] and again.paged.is_same(first.paged)
