"""Commands whose options are completed by the programs that they name and by `qpdsl.toml`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import click
from click.core import ParameterSource

from qpdsl.cli.console import say
from qpdsl.cli.shared_options import HeadedCommand
from qpdsl.errors import UsageError, shorten
from qpdsl.grammar.model_id import is_remote, written_out
from qpdsl.session.project import DEFAULTS, NAME, Project, project_file

# Commands that ask servers; the others send nothing.
_ASKING = ("run", "eval", "serve")


class ModelCommand(HeadedCommand):
    """A command that takes other models for those of programs: the only one of a program needs no name."""

    def invoke(self, ctx: click.Context) -> Any:
        name_models(ctx)
        return super().invoke(ctx)


class ProjectCommand(HeadedCommand):
    """A command that runs, plans or serves programs: models, values, data and options come from the project too."""

    def invoke(self, ctx: click.Context) -> Any:
        name_models(ctx)
        if project_file() is not None:
            from qpdsl.session.project import read_project, set_in_vain

            project = read_project()
            used = apply_project(project, ctx)
            if used and not ctx.params.get("quiet"):
                say(f"note: by {NAME}: {', '.join(used)}")
            # The parameters of a pipeline are what it leaves open.
            if project.set and ctx.params.get("pipeline") is None:
                for warning in set_in_vain(project, _declared(ctx.params)[1]):
                    say(warning)
        if ctx.info_name in _ASKING:
            take_only_models(ctx)
        return super().invoke(ctx)


def name_models(ctx: click.Context) -> None:
    """Writes `--model ID` as `NAME=ID` where the programs have one model alone, in the words of the run too.

    Raises UsageError where they have several.
    """
    values, root = ctx.params, ctx.find_root()
    if all(map(_is_named, values["models"])):
        return
    names = list(_declared(values)[0])
    for at, text in enumerate(values["models"]):
        # The name alone is a model that was left out.
        if _is_named(text) or not names or text in names:
            continue
        if len(names) > 1:
            help = f"one of {', '.join(f'`--model {name}={shorten(text)}`' for name in names)}"
            raise UsageError(f"`--model {shorten(text)}` is for one of several models: {', '.join(names)}", help)
        values["models"] = (*values["models"][:at], f"{names[0]}={text}", *values["models"][at + 1 :])
        root.obj = _replaced(root.obj or (), "--model", text, f"{names[0]}={text}")


def _is_named(text: str) -> bool:
    """Whether a name stands before a model: an id on a server may have the sign too, as in `tokenizer=PLACE`."""
    return "=" in text and not is_remote(written_out(text))


def take_only_models(ctx: click.Context) -> None:
    """Writes a model that is a URL alone as the only one of that server, if it is, in the words of the run too.

    Raises ModelError where the server does not answer.
    """
    values, root = ctx.params, ctx.find_root()
    for at, text in enumerate(values["models"]):
        name, _, id = text.partition("=")
        url, space, options = id.strip().partition(" ")
        if not url.startswith(("http://", "https://")) or "#" in url or find_spec("httpx") is None:
            continue
        import asyncio

        from qpdsl.executor.remote.probe.known_servers import only_model

        if (address := asyncio.run(only_model(url))) is None:
            continue
        if not values.get("quiet"):
            say(f"note: `{name}` is `{address}`, the only model there")
        taken = f"{name}={address}{space}{options}"
        values["models"] = (*values["models"][:at], taken, *values["models"][at + 1 :])
        root.obj = _replaced(root.obj or (), "--model", text, taken)


def apply_project(project: Project, ctx: click.Context) -> list[str]:
    """Adds to the command's values what they lack, and says what that is. Raises UsageError.

    The words of the command line, which a run is saved with, become those that say the same without the project.
    """
    values, used, added = ctx.params, list[str](), list[str]()
    words: Sequence[str] = ctx.find_root().obj or ()
    models, params = _declared(values)
    given = {text.partition("=")[0].strip() for text in (*values["models"], *values["assigned"])}
    for at, text in enumerate(values["models"]):
        name, _, id = text.partition("=")
        if (written := project.written_out(id.strip())) != id.strip():
            values["models"] = (*values["models"][:at], f"{name}={written}", *values["models"][at + 1 :])
            words = _replaced(words, "--model", text, f"{name}={written}")
            used.append(f"{name} is {written}")
    for name in models:
        if name in project.models and name not in given:
            values["models"] += (f"{name}={project.models[name]}",)
            added.append(f"--model={name}={project.models[name]}")
            used.append(f"{name} is {project.models[name]}")
    for name, value in project.set.items():
        if name in params and name not in given:
            # `eval` would take several values apart at commas.
            one = json.dumps(value, ensure_ascii=False) if "," in value and values.get("targets") else value
            values["assigned"] += (f"{name}={one}",)
            added.append(f"--set={name}={one}")
            used.append(f"{name}={value}")
    if (file := project.data.get(values.get("input") or "")) is not None:
        used.append(f"{values['input']} is {file}")
        words = _replaced(words, "--input", values["input"], file)
        values["input"] = file
    replaced = dict(text.partition("=")[::2] for text in values["models"])
    defaults = _defaults(project, ctx, [replaced.get(name, id) for name, id in models.items()])
    used += [f"{option}={value}" for option, value in defaults.items()]
    added += [
        f"--{option}" if value is True else f"--{option}={value}"
        for option, value in defaults.items()
        if value is not False
    ]
    end = words.index("--") if "--" in words else len(words)
    ctx.find_root().obj = (*words[:end], *added, *words[end:])
    return used


def _replaced(words: Sequence[str], option: str, old: str, new: str) -> tuple[str, ...]:
    """The words of a command line with another value of an option."""
    joined = {f"{option}={old}": f"{option}={new}"}
    pairs = pairwise(("", *words))
    return tuple(new if (before, word) == (option, old) else joined.get(word, word) for before, word in pairs)


def _declared(values: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    """The ids of the programs' models by name, and the names of their parameters. Programs that do not parse have none.

    A pipeline has the models that it names.
    """
    from qpdsl.errors import UserError
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import BUILT_IN_MODELS, parse_file
    from qpdsl.session.programs import find_source

    if (pipeline := values.get("pipeline")) is not None:
        words = set(re.findall(r"\w+", pipeline))
        return {name: id for name, id in BUILT_IN_MODELS.items() if name in words}, set()
    models: dict[str, str] = {}
    params: set[str] = set()
    for target in values.get("targets") or [values.get("target") or values.get("surface")]:
        if target in (None, "-"):
            continue
        try:
            file = parse_file(find_source(target))
        except (UserError, QpError):
            continue
        chosen = [program for program in file.programs if values.get("program") in (None, program.name)]
        models |= {model.name: model.id for model in file.models}
        params |= {param.name for program in chosen for param in program.params}
    return models, params


def _defaults(project: Project, ctx: click.Context, models: list[str]) -> dict[str, Any]:
    """Sets options that the command line does not, where they mean something for these models, and returns those."""
    from qpdsl.session.setting import declared
    from qpdsl.session.settings import Settings

    known = {name: one for name, one, _ in declared(Settings)}
    remote = [is_remote(written_out(id)) for id in models]
    used = {}
    for option, value in project.defaults.items():
        name = DEFAULTS[option]
        if name not in ctx.params or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            continue
        one = known[name]
        lacks = one.needs is not None and not ctx.params.get(one.needs)
        nowhere = remote and all(remote) if one.about == "here" else one.about == "servers" and not any(remote)
        if lacks or nowhere:
            continue
        ctx.params[name] = value
        used[option] = value
    return used
