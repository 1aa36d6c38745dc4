"""The commands by name, and what all of them share: errors in one line, and exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from qpdsl import __version__
from qpdsl.cli.console import keep_streams, put, say
from qpdsl.cli.exits import Exit, table
from qpdsl.cli.given_once import refuse_twice
from qpdsl.errors import DataError, LoadError, UserError, is_out_of_memory, reason

# The commands in the order of `--help`, each in the file of `qpdsl.cli.commands` that is named as it is.
_COMMANDS = {
    "run": "Run a program: one answer, or one for every row of a file.",
    "eval": "Compare programs and values on a data set.",
    "whatif": "Say what other values or programs would have given for a saved run.",
    "diff": "Compare two saved runs: accuracy, tokens, flipped rows, with significance.",
    "verify": "Run rows of a saved run again, and say whether they are the same to the byte.",
    "top": "Watch a run that goes on in another terminal.",
    "replay": "Watch a recorded run: at any speed, paused, step by step.",
    "report": "Turn a recorded run, or saved runs, into one HTML page.",
    "runs": "List, show, export and remove saved runs.",
    "optimize": "Improve the texts of a program by reflection on what went wrong.",
    "train": "Fine-tune an adapter on the right answers of a saved run.",
    "init": "Begin a project here: a program, a line for your model, ten problems.",
    "settings": "Show what commands are given here, and where each value comes from.",
    "cache": "Show or empty what is kept between runs.",
    "check": "Check programs and report every error, without loading a model.",
    "fmt": "Lay programs out in the one style.",
    "explain": "Show the plan of a program, without loading a model.",
    "explain-error": "Say what an error's code means, and how to mend it.",
    "profile": "Measure the device for the planner, or estimate what a model takes.",
    "calibrate": "Fit exit heads to a model, for `via amortized`.",
    "analyze": "Show or drop the statistics of earlier runs.",
    "models": "List the models that come with qpdsl; see how one thinks, or what one on a server can do.",
    "programs": "List the programs that come with qpdsl, or print one.",
    "serve": "Serve programs, and models, behind OpenAI's HTTP API.",
    "lsp": "Serve an editor over stdin and stdout (Language Server Protocol).",
    "completion": "Print the completion script of a shell.",
}
# What has another name elsewhere, and where it is here.
_ELSEWHERE = {
    "ls": "`qpdsl runs` lists saved runs, `qpdsl programs` programs, `qpdsl models` models",
    "list": "`qpdsl runs` lists saved runs, `qpdsl programs` programs, `qpdsl models` models",
    "config": "`qpdsl settings` shows them",
    "new": "`qpdsl init` begins a project",
    "export": "`qpdsl runs export` writes a saved run as a file",
}
# What options are called elsewhere, and how the same is said here.
_OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("data", "file", "rows-file"), "rows of a file are `--input FILE`"),
    **dict.fromkeys(
        ("question", "prompt", "query"),
        'the text stands by itself, as in `qpdsl run PROGRAM "…"`; rows name its field by `--map problem=question`',
    ),
    "pass-at-k": "`--candidates` grades every candidate, for pass@k",
    "no-prefix-cache": "`--disable-rule share_prefixes` shares none",
}
# What is left over on a command line, where it looks like a parameter's value.
_SETTING = re.compile(r"extra arguments? \(([A-Za-z_]\w*)=")
_PARTS = ("torch", "transformers", "llguidance")
_EPILOG = f"\b\nexit codes:\n{table()}"
# What is wrong with a name wherever it is used first.
_BAD_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ, errno.ENOTDIR, errno.EACCES)
# Files are written by functions that report their own failures; these are stdout's.
_STDOUT_FAILURES = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


class _Commands(click.Group):
    """Imports a command when it is asked for; to list them, none is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"qpdsl.cli.commands.{cmd_name.replace('-', '_')}").command
        command.short_help, command.epilog = _COMMANDS[cmd_name], command.epilog or _EPILOG
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=help) for name, help in _COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args == ["help"]:
            put(ctx.get_help())
            ctx.exit()
        args = [args[1], "--help"] if args[0] == "help" else args
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from qpdsl.errors import unknown

            if args[0] == "version":
                _show_version(ctx, self.params[0], True)
            if (hint := _ELSEWHERE.get(args[0])) is not None:
                ctx.fail(f"there is no command `{args[0]}`; {hint}")
            ctx.fail(unknown(args[0], _COMMANDS, "there is no command"))
        name, command, rest = super().resolve_command(ctx, args)
        refuse_twice(ctx, name, command, rest)
        return name, command, rest


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        parts = ", ".join(f"{name} {version(name)}" for name in _PARTS)
        put(f"qpdsl {__version__} ({parts}, Python {platform.python_version()})")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions."
)
def cli() -> None:
    """A query planner for test-time compute.

    Search and sampling strategies over language models, written as small `.qp` programs, planned and run here.

    \b
    qpdsl run beam_search "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    qpdsl run beam_search --input counting-500 --output out.jsonl
    qpdsl explain beam_search
    """


def dispatch(argv: Sequence[str]) -> int:
    """Runs a command line and returns its exit code. An interrupt is the caller's to report."""
    keep_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            # A terminal that cannot show a character shows its escape instead of failing.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if instruction := os.environ.get("_QPDSL_COMPLETE"):
        from qpdsl.cli.shells import complete

        return complete(cli, instruction)
    try:
        with cli.make_context("qpdsl", list(argv), obj=tuple(argv)) as ctx:
            code = cli.invoke(ctx)
        # The language server closes its streams.
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        return int(code or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        _say_usage(error)
        return error.exit_code
    except OSError as error:
        if error.errno not in _STDOUT_FAILURES:
            return _fail(error)
        # Python flushes stdout once more at exit; that must not fail again.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return Exit.CLOSED
        say(f"error: cannot write to stdout: {reason(error)}")
        return Exit.USAGE
    except Exception as error:
        return _fail(error)


def _fail(error: Exception) -> int:
    """Reports an error and gives the exit code that it stands for."""
    from qpdsl.arguments import ArgumentError
    from qpdsl.cli.diagnostics import say_error, say_internal, show_error
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.requests.errors import BudgetReached, ServerGone
    from qpdsl.grammar.diagnostic import QpError

    if isinstance(error, QpError):
        show_error(error)
        return Exit.USAGE
    if isinstance(error, UserError):
        say_error(error)
        return {DataError: Exit.DATA, LoadError: Exit.MODEL}.get(type(error), Exit.USAGE)
    if isinstance(error, ArgumentError):
        say(f"error: {error}")
        return Exit.USAGE
    if isinstance(error, ModelError):
        say(f"error: {error}")
        return Exit.MODEL
    if isinstance(error, ServerGone | BudgetReached):
        say(f"error: {error}")
        say("help: re-run to resume; finished requests are cached")
        return Exit.SERVER if isinstance(error, ServerGone) else Exit.BUDGET
    if isinstance(error, OSError) and error.errno in _BAD_PATHS:
        say(f"error: cannot use `{error.filename}`: {reason(error)}")
        return Exit.USAGE
    if is_out_of_memory(error):
        say("error: out of memory: the system gives no more of it to this process")
        say("help: `--kv-memory`, `--concurrency` or a smaller model takes less; finished rows of `--input` are kept")
        return Exit.MEMORY
    say_internal(error)
    return Exit.INTERNAL


def _say_usage(error: click.ClickException) -> None:
    """Prints an error of click in the form of our messages."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        say(error.format_message())
        return
    help = None if ctx is None else f"`{ctx.command_path} --help` lists what there is"
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        message = _unknown_option(error.option_name, ctx)
    else:
        message = error.format_message().rstrip(".").replace("'", "`")
        if setting := _SETTING.search(message):
            help = f"a parameter of the program is set by `--set {setting[1]}=…`"
    say(f"error: {message[:1].lower()}{message[1:]}")
    if help is not None:
        say(f"help: {help}")


def _unknown_option(option: str, ctx: click.Context) -> str:
    from qpdsl.cli.proposals import declared
    from qpdsl.errors import shorten
    from qpdsl.grammar import ast
    from qpdsl.grammar.ast.stage import options as options_of
    from qpdsl.grammar.suggest import CALLED_ELSEWHERE, closest

    name = option.lstrip("-")
    message = f"there is no option `{shorten(option)}`"
    word = name.replace("-", "_")
    word = CALLED_ELSEWHERE.get(word, word)
    if any("--set" in param.opts for param in ctx.command.get_params(ctx)):
        if word in declared(ctx, "params"):
            return f"{message}; `{word}` is a parameter of the program: `--set {word}=…`"
        if word in options_of(ast.Generate):
            place = f"the program says it, as `generate MODEL {word}=…`"
            return f"{message}; {place}, and `--set` takes it once that is a parameter"
        if word.endswith("_key"):
            return f"{message}; the environment has keys of servers: `QPDSL_API_KEYS=https://host:8000=KEY`"
    own = _long_options(ctx.command, ctx)
    if name in _OPTIONS_ELSEWHERE and own & {"input", "set"}:
        return f"{message}; {_OPTIONS_ELSEWHERE[name]}"
    if name == "resume" and ctx.info_name == "eval":
        return f"{message}; the same command again goes on by itself where it ended"
    for other in ("run", "eval", "explain", "serve"):
        command = cli.get_command(ctx, other)
        if command is not None and ctx.command is not command and name in _long_options(command, ctx):
            return f"{message} here; it is one of `qpdsl {other}`"
    near = closest(name, sorted(own))
    return f"{message}; did you mean `--{near}`?" if near else message


def _long_options(command: click.Command, ctx: click.Context) -> set[str]:
    return {opt[2:] for param in command.get_params(ctx) for opt in param.opts if opt.startswith("--")}
