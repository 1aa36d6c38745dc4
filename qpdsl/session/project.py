"""`qpdsl.toml`: what the commands of a project are given where their command line says nothing.

    [models]              ids of models by their names in programs
    [servers]             `NAME = "DIALECT:URL"`: then `NAME:MODEL` is a model there
    [set]                 values of programs' parameters
    [data]                files of rows by names that `--input` takes, in the folder of the project
    [defaults]            options that decide how something is computed, such as `device` and `limit`

It may come with somebody else's folder. So it reads no file outside it but models that it names, runs no code, writes
nothing, and what it changes is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpdsl.errors import UsageError, UserError, reason, shorten, unknown
from qpdsl.executor.foreign.bounded_file import read_bounded
from qpdsl.grammar.model_id import DIALECTS, is_taken
from qpdsl.session.setting import declared, option_of
from qpdsl.session.settings import Settings

NAME = "qpdsl.toml"
_MAX_BYTES = 1 << 16
# So many programs are looked at for the names of their parameters.
_MAX_PROGRAMS = 64
# A value that begins as a path, an id or a word does, and is neither `true` nor `false`, a number or a date.
_BARE = re.compile(
    r"^\s*([\w.-]+)\s*=\s*((?!(?:true|false|inf|nan)\s*(?:#|$))[A-Za-z./~][^#\n]*?)\s*(?:#|$)", re.MULTILINE
)
_SECTIONS = ("models", "servers", "set", "data", "defaults")
# The settings that it may say, by the names of their options.
DEFAULTS = {option_of(name, one).removeprefix("--"): name for name, one, _ in declared(Settings) if one.project}


@dataclass(frozen=True, slots=True)
class Project:
    """What the file says, checked but for the values of settings. `path` is None where there is no file."""

    path: Path | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def written_out(self, model: str) -> str:
        """The id of a model on one of the servers, `NAME:MODEL`, and any other id as it is."""
        name, sign, rest = model.partition(":")
        return f"{self.servers[name]}#{rest}" if sign and name in self.servers else model


def project_file() -> Path | None:
    """The file of the current folder, or of one above it in the same Git checkout; None where there is none.

    A file that another user owns does not count.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / NAME
        if path.is_file() and path.stat().st_uid in (os.getuid(), 0):
            return path
        if (folder / ".git").exists():
            return None
        if folder == here and not any((above / ".git").exists() for above in here.parents):
            return None
    return None


def read_project() -> Project:
    """The project of the current folder, an empty one where there is none. Raises UsageError."""
    try:
        path = project_file()
        if path is None:
            return Project()
        text = read_bounded(path, _MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{NAME}` is not UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"cannot read `{NAME}`: {reason(error)}") from error
    import tomllib

    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"`{NAME}`: {error}", _without_quotes(text)) from error
    return _checked(path, content)


def set_in_vain(project: Project, params: Iterable[str] = ()) -> Iterator[str]:
    """A warning for each key of [set] that is a parameter of no program here; `params` are those of a command's.

    The programs here are those beside the file and one folder below, or where there are none the shipped ones.
    """
    known = {*params}
    if project.path is None or project.set.keys() <= known:
        return
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.session.programs import find_source, shipped_sources

    folder = project.path.parent
    own = [str(path) for path in sorted([*folder.glob("*.qp"), *folder.glob("*/*.qp")])[:_MAX_PROGRAMS]]
    for target in own or shipped_sources():
        with suppress(UserError, QpError):
            file = parse_file(find_source(target))
            known.update(param.name for program in file.programs for param in program.params)
    for name in project.set:
        if name not in known:
            yield f"warning: {NAME}: {unknown(name, sorted(known), '[set] is for parameters, and no program here has')}"


def _without_quotes(text: str) -> str | None:
    """What mends the first line whose text stands without quotes, None where there is none."""
    found = _BARE.search(text)
    return None if found is None else f'put the text in quotes: `{found[1]} = "{shorten(found[2])}"`'


def _checked(path: Path, content: Mapping[str, Any]) -> Project:
    for section, values in content.items():
        if section not in _SECTIONS:
            raise UsageError(f"`{NAME}`: {unknown(section, _SECTIONS, 'there is no section')}")
        if not isinstance(values, dict):
            raise UsageError(f"`{NAME}`: `{section}` is a section: `[{section}]`, and a line for each of its names")
    for section in ("models", "servers", "data"):
        for name, value in content.get(section, {}).items():
            if not isinstance(value, str) or not value:
                raise UsageError(f"`{NAME}`: `{name}` in [{section}] takes a text")
    servers = {name: place.rstrip("/") for name, place in content.get("servers", {}).items()}
    for name, place in servers.items():
        if place.partition(":")[0] not in DIALECTS:
            raise UsageError(f'`{NAME}`: a server is `name = "vllm:http://…/v1"`, with one of {", ".join(DIALECTS)}')
        if not name.isidentifier() or is_taken(name):
            raise UsageError(f"`{NAME}`: `{name}` in [servers] names no server of yours", "choose another name")
    for name in content.get("defaults", {}):
        if name not in DEFAULTS:
            help = "options that read or write files, or run code, stand on the command line"
            raise UsageError(f"`{NAME}`: {unknown(name, DEFAULTS, '[defaults] takes no')}", help)
    project = Project(path, servers=servers)
    return Project(
        path,
        {name: project.written_out(_place(path, id)) for name, id in content.get("models", {}).items()},
        servers,
        {name: _text(name, value) for name, value in content.get("set", {}).items()},
        {name: _file(path, name, place) for name, place in content.get("data", {}).items()},
        content.get("defaults", {}),
    )


def _place(path: Path, model: str) -> str:
    """A model's id, a path of which starts at the file's folder."""
    return os.path.normpath(path.parent / model) if model.startswith(("./", "../")) else model


def _text(name: str, value: Any) -> str:
    """A value as `--set` takes it. A text is that text, and never the name of a file."""
    import json

    if isinstance(value, str):
        return f"@{value}" if value.startswith("@") else value
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value)
    raise UsageError(f"`{NAME}`: `{name}` in [set] takes a text, a number, a truth value, a list or a table")


def _file(path: Path, name: str, place: str) -> str:
    """A file of rows, which lies in the folder of the project, links followed."""
    folder = path.parent.resolve()
    file = (folder / place).resolve()
    if not file.is_relative_to(folder):
        raise UsageError(
            f"`{NAME}`: `{name}` in [data] names `{shorten(place)}`, which is not in `{folder}`",
            "`--input` takes files of other places",
        )
    return os.path.relpath(file)
