"""What the shell may propose: programs, models, parameters, codes; nothing where the line makes no sense.

MERGED: Completion in bash, zsh and fish: click's own, but `NAME=` and `FOLDER/` get no space, and bash sees through `=`.

An item of the type `nospace` is a beginning that the user goes on with.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

if TYPE_CHECKING:
    Item = CompletionItem[str]


def complete_programs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Programs that ship with qpdsl, `.qp` files, and the folders on the way to them."""
    from qpdsl.sources.programs import shipped_programs

    names = [CompletionItem(name) for name in shipped_programs() if name.startswith(incomplete)]
    return [*names, *_paths(incomplete, ".qp")]


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`.qp` files, and the folders on the way to them."""
    return list(_paths(incomplete, ".qp"))


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Sets of rows that ship with qpdsl, and files."""
    from qpdsl.sources.programs import shipped_data

    names = [CompletionItem(name) for name in shipped_data() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`NAME=` for the parameters of the program on the line that have no value yet."""
    if "=" in incomplete:
        return []
    given = {setting.partition("=")[0] for setting in _words(ctx)["--set"]}
    return _open_names((name for name in _declared(ctx, "params") if name not in given), incomplete)


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """`NAME=` for the models of the program on the line, then the built-in models."""
    name, sign, start = incomplete.partition("=")
    if not sign:
        return _open_names(_declared(ctx, "models"), incomplete)
    from qpdsl import zoo

    ids = [model.name for model in zoo.BUILTIN if model.name.startswith(start)]
    return [CompletionItem(f"{name}={id_}") for id_ in ids]


def complete_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The planner's rules."""
    from qpdsl.planner.optimize import by_cost
    from qpdsl.planner.rules import RULES

    known = {**{rule.name: rule.description for rule in RULES}, by_cost.NAME: by_cost.DESCRIPTION}
    return [CompletionItem(name, help=told) for name, told in known.items() if name.startswith(incomplete)]


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The programs of the file on the line."""
    return [CompletionItem(name) for name in _declared(ctx, "programs") if name.startswith(incomplete)]


def complete_codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Codes of diagnostics, with their titles where the shell shows them."""
    from qpdsl.grammar.codes import CODES

    start = incomplete.upper()
    return [CompletionItem(name, help=code.title) for name, code in CODES.items() if name.startswith(start)]


def _open_names(names: Iterable[str], incomplete: str) -> list[Item]:
    return [CompletionItem(f"{name}=", type="nospace") for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, suffix: str) -> Iterator[Item]:
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
        elif entry.suffix == suffix:
            yield CompletionItem(f"{head}{slash}{entry.name}")


def _declared(ctx: click.Context, what: str) -> list[str]:
    """Names of the parameters, models or programs that the program file on the line declares; parsed, not checked."""
    words = _words(ctx)
    if not words[""]:
        return []
    target = words[""][0]
    from qpdsl.errors import UserError
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.sources.programs import find_source

    try:
        file = parse_file(find_source(target))
    except (UserError, QpError):
        return []
    wanted = [*words["--program"], Path(target).stem][0]
    if what == "programs":
        return [program.name for program in file.programs]
    if what == "models":
        return [model.name for model in file.models]
    chosen = [program for program in file.programs if program.name == wanted] or list(file.programs[:1])
    return [param.name for program in chosen for param in program.params]


def _words(ctx: click.Context) -> defaultdict[str, list[str]]:
    """The values on the line so far by the option before them, those without one under ""; `ctx.obj` has all words."""
    options = [param for param in ctx.command.params if isinstance(param, click.Option) and not param.is_flag]
    takes_value = {name for option in options for name in option.opts}
    found: defaultdict[str, list[str]] = defaultdict(list)
    option = ""
    for word in ctx.obj[1:]:
        if not option and word.startswith("-"):
            name, sign, value = word.partition("=")
            if sign:
                found[name].append(value)
            elif name in takes_value:
                option = name
        else:
            found[option].append(word)
            option = ""
    return found


VARIABLE = "_QPDSL_COMPLETE"

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            nospace) compopt -o nospace; COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a described plain open response
    local type key text
    local -x COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1))
    response=("${(@f)$(%(complete_var)s=zsh_complete %(prog_name)s)}")
    for type key text in ${response}; do
        case $type in
            plain) [[ $text == _ ]] && plain+=("$key") || described+=("$key:$text") ;;
            nospace) open+=("$key") ;;
            file) _path_files -f ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V plain -a plain
    (( $#open )) && compadd -U -S '' -V open -a open
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class Bash(BashComplete):
    """Bash breaks words at `=` too and replaces the last piece alone."""

    source_template = _BASH
    _broken = False

    def get_completion_args(self) -> tuple[list[str], str]:
        words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        joined: list[str] = []
        for word in words:
            if joined and (word == "=" or joined[-1].endswith("=")):
                joined[-1] += word
            else:
                joined.append(word)
        *before, last = joined
        self._broken = last != words[-1]
        return [part for word in before[1:] for part in split_arg_string(word)], last

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{item.value.partition('=')[2] if self._broken else item.value}"

    def source(self) -> str:
        """Click's own starts a bash to ask its version."""
        return self.source_template % self.source_vars()


class Zsh(ZshComplete):
    source_template = _ZSH


class Fish(FishComplete):
    """Fish puts no space behind `=` and `/`."""

    def format_completion(self, item: CompletionItem[str]) -> str:
        kind = "plain" if item.type == "nospace" else item.type
        return super().format_completion(CompletionItem(item.value, kind, item.help))


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def complete(cli: click.Command, instruction: str) -> int:
    """Answers a shell that asks what may come next; `instruction` is the variable's value, say `bash_complete`."""
    shell = SHELLS.get(instruction.removesuffix("_complete"))
    if shell is None:
        return 1
    asked = shell(cli, {}, "qpdsl", VARIABLE)
    # Click drops the line's words where the last of them is an option that waits for its value.
    asked.ctx_args["obj"] = asked.get_completion_args()[0]
    click.echo(asked.complete())
    return 0
