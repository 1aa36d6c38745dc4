"""Which server it is, what models it has, and how long a context may be, as the server says itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.failures import Refused, Unreachable
from qpdsl.grammar.model_id import DialectName

# What a server says of whose its models are, and what it is then.
_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama-server",
    "me": "llama_cpp.server",
    "qpdsl": "qpdsl serve",
}
_DIALECTS: Mapping[str, DialectName] = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "llama-server": "llamacpp",
    "llama_cpp.server": "llamacpp",
    "qpdsl serve": "vllm",
}
# What to ask for where the server does not say what it is: what answers there has the dialect's name by right.
_OF_DIALECT: Mapping[DialectName, str] = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama-server"}

# A version is shown and kept up to here, in characters.
_LONGEST = 80
# A path that `transformers serve` alone has.
_OF_TRANSFORMERS = "/load_model"


@dataclass(frozen=True, slots=True)
class Identity:
    """`kind` is the server's usual name, empty where it is not known; `version` as it says it, empty where it does not.

    `models` are the names that it lists, empty where it lists none. `contexts`: tokens that a prompt and its
    continuation may have together, by these names; `context` holds for those that are not among them. `programs` are
    the names that stand for programs of `qpdsl serve`.
    """

    kind: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    contexts: tuple[tuple[str, int], ...] = ()
    context: int | None = None
    programs: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        return f"{self.kind} {self.version}".strip()

    @property
    def dialect(self) -> DialectName | None:
        """The dialect that knows all that such a server has, None where it is not known."""
        return _DIALECTS.get(self.kind)

    def context_of(self, model: str) -> int | None:
        return dict(self.contexts).get(model, self.context)


async def identify(connection: Connection, dialect: DialectName) -> Identity:
    """Asks the server who it is. Raises Refused where it takes no request, Unreachable where it does not answer."""
    listed = await _models(connection)
    models = [model for model in listed if isinstance(model.get("id"), str)]
    owners = {str(model.get("owned_by")) for model in models}
    kind = next((_OWNERS[owner] for owner in sorted(owners & _OWNERS.keys())), "")
    about = {} if not (kind or dialect in _OF_DIALECT) else await _about(connection, kind or _OF_DIALECT[dialect])
    if about and not kind:
        kind = _OF_DIALECT[dialect]
    if not kind and not models and _OF_TRANSFORMERS in (await _get(connection, "/openapi.json")).get("paths", {}):
        kind = "transformers serve"
    contexts = tuple((model["id"], context) for model in models for context in _whole(model.get("max_model_len")))
    own = [*_whole(about.get("n_ctx")), *_whole(about.get("context_length"))]
    names = tuple(model["id"] for model in models)
    programs = tuple(model["id"] for model in models if "program" in model)
    version = str(about.get("version") or "")[:_LONGEST]
    return Identity(kind, version, names, contexts, own[0] if own else None, programs)


async def _models(connection: Connection) -> list[dict[str, Any]]:
    try:
        answer = await connection.get("models")
    except Refused as refused:
        if refused.status in (404, 405):
            return []
        raise
    except Unreachable as failed:
        # transformers serve lists models of the hub, and fails where there is none.
        if failed.status == 500:
            return []
        raise
    listed = answer.get("data") if isinstance(answer, dict) else None
    return [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []


async def _about(connection: Connection, kind: str) -> dict[str, Any]:
    """What a server of this kind says of itself; empty where nothing of the kind is answered."""
    if kind in ("vLLM", "qpdsl serve"):
        said = await _get(connection, "/version")
        return {"version": said["version"]} if isinstance(said.get("version"), str) else {}
    if kind == "SGLang":
        said = await _get(connection, "/server_info") or await _get(connection, "/get_server_info")
        return {name: said[name] for name in ("version", "context_length") if name in said}
    if kind == "llama-server":
        said = await _get(connection, "/props")
        settings = said.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        return {"version": said["build_info"], "n_ctx": context} if "build_info" in said else {}
    info = (await _get(connection, "/openapi.json")).get("info")
    return {"version": info.get("version")} if isinstance(info, dict) else {}


async def _get(connection: Connection, path: str) -> dict[str, Any]:
    try:
        said = await connection.get(path)
    except (Refused, Unreachable):
        return {}
    return said if isinstance(said, dict) else {}


def _whole(value: object) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield value
