"""What a shell may propose where a word is missing: programs, models, parameters, rules, codes.

Nothing is proposed where the command line makes no sense. The user continues an item of the type `nospace`, such as
`NAME=` or `FOLDER/`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import (
    CompletionItem,
)

if TYPE_CHECKING:
    Item = CompletionItem[str]


def complete_programs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Programs that ship with qpdsl, `.qp` files, and the folders on the way to them."""
    from qpdsl.session.programs import shipped_sources

    names = [CompletionItem(name) for name in shipped_sources() if name.startswith(incomplete)]
    return [*names, *_paths(incomplete, ".qp")]


def complete_shipped(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Programs that ship with qpdsl."""
    from qpdsl.session.programs import shipped_sources

    return [CompletionItem(name) for name in shipped_sources() if name.startswith(incomplete)]


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`.qp` files, and the folders on the way to them."""
    return list(_paths(incomplete, ".qp"))


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Sets of rows that ship with qpdsl, and files."""
    from qpdsl.session.programs import shipped_data

    names = [CompletionItem(name) for name in shipped_data() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The ids of the saved runs, newest first; after a comma too, where several are named."""
    from qpdsl.errors import UserError
    from qpdsl.runs.store.run_folder import RunFolder

    head, comma, start = incomplete.rpartition(",")
    try:
        ids = RunFolder().ids()
    except UserError:
        return []
    return [CompletionItem(f"{head}{comma}{id}") for id in reversed(ids) if id.startswith(start)]


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`NAME=` for the parameters of the program on the line that have no value yet."""
    if "=" in incomplete:
        return []
    names = {setting.partition("=")[0] for setting in _words(ctx)["--set"]}
    return _open_names((name for name in declared(ctx, "params") if name not in names), incomplete)


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`NAME=` for the models of the program on the line, then the built-in models."""
    name, sign, start = incomplete.partition("=")
    if not sign:
        return _open_names(declared(ctx, "models"), incomplete)
    return [CompletionItem(f"{name}={item.value}") for item in complete_ids(ctx, param, start)]


def complete_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The built-in models."""
    from qpdsl import zoo

    return [CompletionItem(model.name) for model in zoo.BUILTIN if model.name.startswith(incomplete)]


def complete_adapters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`NAME=` for the models of the program on the line, then folders."""
    name, sign, start = incomplete.partition("=")
    if not sign:
        return _open_names(declared(ctx, "models"), incomplete)
    return [CompletionItem(f"{name}={item.value}", type=item.type) for item in _paths(start, None)]


def complete_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The planner's rules."""
    from qpdsl.planner.optimize import by_cost
    from qpdsl.planner.rules import RULES

    known = {**{rule.name: rule.description for rule in RULES}, by_cost.NAME: by_cost.DESCRIPTION}
    return [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The programs of the file on the line."""
    return [CompletionItem(name) for name in declared(ctx, "programs") if name.startswith(incomplete)]


def complete_codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Codes of diagnostics, with their titles where the shell shows them."""
    from qpdsl.grammar.codes import CODES

    start = incomplete.upper()
    return [CompletionItem(name, help=code.title) for name, code in CODES.items() if name.startswith(start)]


def complete_described(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The built-in models, models by their public names, GGUF files and folders."""
    from qpdsl import zoo
    from qpdsl.planner.capacity.architecture import published_models

    names = [*(model.name for model in zoo.BUILTIN), *published_models()]
    return [
        *(CompletionItem(name) for name in names if name.startswith(incomplete)),
        CompletionItem(incomplete, type="file"),
    ]


def complete_hardware(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Known hardware, and this machine."""
    from qpdsl.planner.capacity.hardware import known_hardware
    from qpdsl.session.described_model import HERE

    return [CompletionItem(name) for name in (*known_hardware(), HERE) if name.lower().startswith(incomplete.lower())]


def _open_names(names: Iterable[str], incomplete: str) -> list[Item]:
    return [CompletionItem(f"{name}=", type="nospace") for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, suffix: str | None) -> Iterator[Item]:
    """Folders, and files whose names end in `suffix`."""
    head, slash, start = incomplete.rpartition("/")
    folder = Path(head + slash).expanduser()
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if entry.is_dir():
            yield CompletionItem(f"{head}{slash}{entry.name}/", type="nospace")
        elif suffix is not None and entry.suffix == suffix:
            yield CompletionItem(f"{head}{slash}{entry.name}")


def declared(ctx: click.Context, what: str) -> list[str]:
    """Names of the parameters, models or programs that the program file on the line declares; parsed, not checked."""
    words = _words(ctx)
    # A program is what an option names, or else the first argument.
    named = [*words["--surface"], *words[""]]
    if not named:
        return []
    target = named[0]
    from qpdsl.errors import UserError
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.session.programs import find_source

    try:
        file = parse_file(find_source(target))
    except (UserError, QpError):
        return []
    name = [*words["--program"], Path(target).stem][0]
    if what == "programs":
        return [program.name for program in file.programs]
    if what == "models":
        return [model.name for model in file.models]
    chosen = [program for program in file.programs if program.name == name] or list(file.programs[:1])
    return [param.name for program in chosen for param in program.params]


def _words(ctx: click.Context) -> defaultdict[str, list[str]]:
    """The values on the line so far by the option before them, those without one under ""; `ctx.obj` has all words."""
    options = [param for param in ctx.command.params if isinstance(param, click.Option) and not param.is_flag]
    takes_value = {name for option in options for name in option.opts}
    values: defaultdict[str, list[str]] = defaultdict(list)
    option = ""
    for word in ctx.obj[1:]:
        if not option and word.startswith("-"):
            name, sign, value = word.partition("=")
            if sign:
                values[name].append(value)
            elif name in takes_value:
                option = name
        else:
            values[option].append(word)
            option = ""
    return values
