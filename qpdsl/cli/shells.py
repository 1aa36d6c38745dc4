"""Completion in bash, zsh and fish: the scripts that they load, and the answers to what they ask.

These are click's own, with two changes: no space follows `NAME=` and `FOLDER/`, and bash can complete words that
contain a `=`.
"""

from __future__ import annotations

import os
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

from qpdsl.cli.console import put

if TYPE_CHECKING:
    Item = CompletionItem[str]


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
    completion = shell(cli, {}, "qpdsl", VARIABLE)
    # Click drops the words of the line where the last one is an option without its value.
    completion.ctx_args["obj"] = completion.get_completion_args()[0]
    put(completion.complete())
    return 0
