"""Where a model and its adapter lie: a built-in model, a folder, a GGUF file, a repository of the hub, or a server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from qpdsl import zoo
from qpdsl.errors import UsageError, unknown
from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder
from qpdsl.executor.checkpoint.errors import ModelError, no_verifier
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.remote.server.address import Address
from qpdsl.grammar.model_id import SCHEMES, adapter_of, base_of, is_remote
from qpdsl.grammar.words import VERIFIER_KINDS
from qpdsl.planner.plan import ops

# A URL, or one behind what is to say how its server is spoken to.
_SCHEME = re.compile(r"([A-Za-z]\w*):(?://|https?://)")


def locate(model: str) -> Path | str:
    """Where a model id points: a built-in or local folder or a file (a Path), or else a hub id (the string itself).

    A path that does not exist comes back as a Path too, for the loader to refuse. An adapter in the id does not count.
    Raises ModelError for a model on a server, and for a built-in one that there is not.
    """
    if is_remote(model):
        raise ModelError(model, "it is on a server, and its weights are needed here")
    if model.startswith("zoo/"):
        try:
            return zoo.path(model)
        except ValueError as error:
            raise ModelError(model, str(error)) from error
    if (scheme := _SCHEME.match(model)) is not None:
        raise ModelError(model, unknown(f"{scheme[1]}:", [f"{name}:" for name in SCHEMES], "no model begins with"))
    return _place(base_of(model))


def locate_adapter(model: str) -> Path | str | None:
    """Where the adapter of a model id points: a folder (a Path) or a hub id; None where the id has no adapter."""
    adapter = adapter_of(model)
    if adapter is not None and is_remote(model):
        raise ModelError(model, "it is on a server, which has to have the adapter itself, under a name of its own")
    if adapter == "":
        raise ModelError(model, "its adapter has no name")
    return None if adapter is None else _place(adapter)


def locate_tokenizer(address: Address) -> Path | str | None:
    """Where the tokenizer of a model on a server points, as `locate` says it; None where only the server knows it."""
    return None if address.tokenizer is None else locate(address.tokenizer)


def tokenizer_place(model: str) -> Path | str:
    """Where the tokenizer of a model points, as `locate` says it. Raises UsageError where only its server has one."""
    address = Address.of(model)
    place = locate(model) if address is None else locate_tokenizer(address)
    if place is None:
        raise UsageError(f"only the server knows the chat template of `{model}`", "add ` tokenizer=PLACE` to its id")
    return place


def own_places(model: str) -> list[tuple[Path | str, str]]:
    """Where all lies that is read here for a model, each with what it is, in words. Raises ModelError."""
    address = Address.of(model)
    if address is not None:
        tokenizer = locate_tokenizer(address)
        return [] if tokenizer is None else [(tokenizer, "tokenizer of the model")]
    adapter = locate_adapter(model)
    return [(locate(model), "model"), *([] if adapter is None else [(adapter, "adapter of the model")])]


def _place(name: str) -> Path | str:
    path = Path(name).expanduser()
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1
    looks_like_path = looks_like_path or path.suffix.lower() == SUFFIX
    return path if looks_like_path or path.exists() else name


def stored_weights(models: Mapping[str, str]) -> dict[str, str]:
    """How weights are stored that stay so on a CPU, in words, by the models' names in a program: GGUF, quantized ones.

    Raises ModelError where a model is not there or not whole.
    """
    found: dict[str, str] = {}
    for name, model in models.items():
        location = None if is_remote(model) else locate(model)
        if isinstance(location, Path) and (kinds := ModelFolder.of(model, location).kinds) is not None:
            found[name] = kinds
    return found


def check_models(models: Iterable[str]) -> None:
    """Raises ModelError for the first model that is not there or not whole, as far as its files tell unloaded.

    Quick, and loads no torch. Hub ids are not looked up, and no server is asked.
    """
    for model in dict.fromkeys(models):
        address = Address.of(model)
        if address is not None:
            locate_adapter(model)
            tokenizer = locate_tokenizer(address)
            if isinstance(tokenizer, Path):
                ModelFolder.of(model, tokenizer, weights=False)
            continue
        location = locate(model)
        if isinstance(location, Path):
            ModelFolder.of(model, location)
        adapter = locate_adapter(model)
        if isinstance(adapter, Path):
            AdapterFolder.of(model, adapter)


def check_verifiers(operators: Iterable[ops.Operator], models: Mapping[str, str]) -> None:
    """Raises ModelError for a model here that is to score, though its files are those of one that only writes.

    `models` are the ids by name. What the files do not tell is left to the loader, as are those that are not there.
    """
    for op in operators:
        if not isinstance(op, ops.StepScore) or op.kind is not None or op.verifier.name not in models:
            continue
        model = models[op.verifier.name]
        location = None if is_remote(model) or model.startswith("zoo/") else locate(model)
        if isinstance(location, Path) and location.exists() and ModelFolder.of(model, location).only_writes:
            raise no_verifier(model, VERIFIER_KINDS)
