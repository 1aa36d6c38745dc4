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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
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
from qpdsl.executor.kernels.data.weights import FloatWeight, LateFloatWeight, Weight
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredExperts, StoredLinear, stored_parameters
from qpdsl.executor.kernels.llvm.compile import digest_of_sources, machine, surroundings
from qpdsl.executor.kernels.llvm.large_pages import give_back
from qpdsl.executor.kernels.llvm.panel_file import CheckedPanels, KeptPanels, NotKept, PanelWriter
from qpdsl.executor.kernels.llvm.panels import Shelf
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
# Weights may be twice as wide in memory as in their files, where they are not asked for as they are stored.
_WIDENED = 2
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
            model.num_parameters() + stored_parameters(model),
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
            made = self if not module.path else weights.module(module, is_end=module.path in outline.ends)
            if module.path:
                owner, _, name = module.path.rpartition(".")
                self.get_submodule(owner).add_module(name, made)
            for name, value in module.settings.items():
                setattr(made, name, value)
            for name, source in module.tensors.items():
                if not hasattr(made, "stored"):
                    made.register_parameter(name, torch.nn.Parameter(weights.floats(source), requires_grad=False))
            for name, (kind, shape, numbers) in module.buffers.items():
                made.register_buffer(name, torch.tensor(numbers, dtype=getattr(torch, kind)).view(shape))
        embedding, head = outline.ends
        self._ends = [None if path is None else self.get_submodule(path) for path in (embedding, head)]

    def num_parameters(self) -> int:
        """Those that its layers do not hold as `stored_parameters` counts them."""
        return self._count - stored_parameters(self)

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
        self._late: dict[str, Weight] = {}

    def module(self, module: ModuleOutline, *, is_end: bool) -> torch.nn.Module:
        """`is_end`: whether it is the embedding or the head."""
        if module.stored is not None:
            if module.kind == "StoredEmbedding":
                return StoredEmbedding(self.late(module.stored), module.settings["scale"])
            bias = f"{module.path}.bias"
            has_bias = self._gguf is not None and bias in self._gguf.named
            return StoredLinear(self.late(module.stored), self.floats(bias).float() if has_bias else None)
        if module.kind == "Linear":
            own = module.tensors.get("bias")
            return StoredLinear(self.late(module.tensors["weight"]), None if own is None else self.floats(own).float())
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
        if is_end and "weight" in module.tensors:
            alike.stored = self.late(module.tensors["weight"])  # type: ignore[assignment]
            alike.weight = torch.empty(0, dtype=self._dtype)
        return alike

    def late(self, name: str) -> Weight:
        """Weights [out, in] that are read when they are asked for."""
        if name not in self._late:
            self._late[name] = self._of_gguf(name) if self._gguf is not None else self._of_floats(self._mapped(name))
        return self._late[name]

    def _of_gguf(self, name: str) -> Weight:
        assert self._gguf is not None
        gguf, shape = self._gguf, torch.Size(self._gguf.named[name].shape)
        if self._dtype is None:
            return gguf.late_weight(name, shape)
        form = FloatWeight(torch.empty(0, shape[1], dtype=self._dtype))
        return LateFloatWeight(form, shape[0], lambda: FloatWeight(gguf.floats(name, shape).to(self._dtype)))

    def _of_floats(self, values: torch.Tensor) -> Weight:
        """Of a type of their own, they stay in their file's pages."""
        if values.dtype == self._dtype:
            return LateFloatWeight(FloatWeight(values[:0], True), len(values), lambda: FloatWeight(values, True))

        def read() -> FloatWeight:
            found = values.to(self._dtype)
            give_back(values)
            return FloatWeight(found)

        return LateFloatWeight(FloatWeight(values[:0].to(self._dtype)), len(values), read)

    def _mapped(self, name: str) -> torch.Tensor:
        file = self._folder.file(name)
        if file not in self._maps:
            self._maps[file] = _MappedTensors(file)
        return self._maps[file].tensor(name)

    def floats(self, name: str) -> torch.Tensor:
        if self._gguf is not None:
            found = self._gguf.floats(name, torch.Size(self._gguf.named[name].shape))
        else:
            found = self._mapped(name)
        return found.to(self._dtype or torch.float32)


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
        self,
        name: str,
        folder: ModelFolder,
        files: Path,
        dtype: torch.dtype | None,
        kv_type: KVType | None,
        shelf: Shelf | None = None,
    ) -> PagedTextModel:
        """The model again, with its weights on the `shelf`. `files`: the folder in isolation.

        Raises whatever a record that is not its provokes.
        """
        # What imports leave behind, and then the tokenizer, would add to the most that a load takes.
        trim_heap()
        tokenizer = _tokenizer(self.tokenizer, folder, files)
        trim_heap()
        modules: Any = KnownModules(self.outline, folder, dtype)
        verifier, head = None, None
        if self.kind is not None:
            kind = named(self.kind)
            head = own_head(kind, CheckpointTensors(folder), "cpu")
            padding = getattr(modules.config.get_text_config(), "pad_token_id", None)
            verifier = kind(tokenizer, None if head is None else head.width, padding)
        paged = PagedModel(modules, kv_type=kv_type, head=head, found=self.found, shelf=shelf)
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is kept what is known of a model, and its weights in panels, by all that these depend on.

    weights: about how many bytes those have
    """

    key: str
    record: Path
    panels: Path
    weights: int

    @classmethod
    def of(cls, folder: ModelFolder, dtype: torch.dtype | None, kind: str | None) -> Place | None:
        """Of a model with floats of `dtype` that is asked for as a verifier of a `kind`, or as none.

        It depends on every file of the model, the libraries, this code and the processor. None where there is no home.
        """
        cache = cache_folder()
        if cache is None:
            return None
        files = [(name, (folder.path / name).stat()) for name in sorted(folder.files)]
        states = [(name, state.st_mtime_ns) for name, state in files]
        key = _digest(model_digest(folder), states, dtype, kind, _libraries(), surroundings())
        # Panels of one model replace each other, on each kind of machine that shares the folder.
        model = _digest(folder.path.resolve(), sorted(folder.files), dtype, kind, machine())
        size = sum(state.st_size for _, state in files)
        return cls(key, cache / "models" / f"{key}.json", cache / "panels" / f"{model}-{key}", size)

    def known(self) -> KnownModel | None:
        """None where nothing is, or where it cannot be read."""
        try:
            with open(opened(self.record, os.O_RDONLY), "rb") as file:
                said = KnownModel.from_json(json.loads(file.read(_MAX_BYTES)))
            os.utime(self.record)
            return said
        except Exception:  # whatever a damaged file provokes
            return None

    def shelf(self) -> KeptPanels | PanelWriter | None:
        """The weights in panels, or what writes them; None where they cannot be kept."""
        return KeptPanels.of(self.panels, self.key) or self.writer()

    def writer(self, spare_sources: Callable[[], None] = lambda: None) -> PanelWriter | None:
        """See `shelf` and `PanelWriter`."""
        with contextlib.suppress(OSError):
            return PanelWriter(self.panels, self.key, _WIDENED * self.weights, spare_sources)
        return None

    def keep(
        self,
        model: KnownModel,
        first: PagedTextModel,
        folder: ModelFolder,
        files: Path,
        dtype: torch.dtype | None,
        writer: PanelWriter | None,
    ) -> PagedTextModel | None:
        """Writes down what the `first` load came to, if a model that is made from it has the same tokens and bits.

        Returns that model, which holds no more than later starts do; None where it is not the same.
        """
        shelf = None if writer is None else CheckedPanels(writer)
        try:
            again = model.loaded(first.name, folder, files, dtype, first.paged.layout.kv_type, shelf)
            content = json.dumps(asdict(model)).encode()
            is_known = _is_same(again, first, shelf) and len(content) <= _MAX_BYTES
        except Exception:  # what cannot be made from a record is loaded as it was now
            is_known = False
        if not is_known:
            return None
        if writer is not None:
            keep_panels(again.paged, writer)
        keep_file(self.record, content)
        with contextlib.suppress(OSError):
            by_age = sorted(self.record.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
            for old in by_age[_MAX_MODELS:]:
                old.unlink(missing_ok=True)
        return again


def _digest(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


@cache
def _libraries() -> tuple[str, ...]:
    sources = Path(__file__).parents[1]
    own = [digest_of_sources(sources / part) for part in ("checkpoint", "engine/model", "models", "text", "verifiers")]
    return version("transformers"), tokenizers.__version__, torch.__version__, *own


def keep_panels(paged: PagedModel, writer: PanelWriter) -> None:
    """Finishes the file of a model's weights, with what its head makes of them."""
    with contextlib.suppress(NotKept):
        if paged.panel_head is not None:
            paged.panel_head.prepare()
        writer.spare()
        writer.keep()


def _is_same(again: PagedTextModel, first: PagedTextModel, shelf: Shelf | None) -> bool:
    """Whether two loads have the same tokens, and the same bits for some of them."""
    if _texts(again) != _texts(first):
        return False
    trim_heap()
    return again.paged.is_same(first.paged, shelf)


def _texts(model: PagedTextModel) -> tuple[object, ...]:
    tokenizer = model.tokenizer
    return model.eos, model.backend.to_str(), tokenizer.chat_template, tokenizer.special_tokens_map
