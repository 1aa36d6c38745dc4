"""`qpdsl serve`: programs, and bare models, behind OpenAI's HTTP API."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.options.session_options import SessionOptions, computing_options, spending_options
from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.runs.load_notes import LoadNotes
from qpdsl.cli.shared_options import (
    FileName,
    code_option,
    planning_options,
    reading_options,
    within_option,
)
from qpdsl.cli.signals import handled, interruptible, leave_signals_alone
from qpdsl.errors import UsageError
from qpdsl.garbage_collector import collections_paused
from qpdsl.grammar.suggest import listed

if TYPE_CHECKING:
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.serve.served_model import ServedModel
    from qpdsl.session import Session
    from qpdsl.sources.surroundings import Surroundings

# What the event stream keeps: nobody asks a server for its history.
_HISTORY = 256
# Holds what the key of TLS is locked with: who lists processes sees their arguments.
_PASSWORD = "QPDSL_TLS_KEY_PASSWORD"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(SessionOptions):
    """The options as the user set them; `command` says what each means."""

    targets: tuple[str, ...]
    defaults: tuple[str, ...]
    expose: tuple[str, ...]
    ignore: tuple[str, ...]
    seed: int | None
    host: str
    port: int
    keys: str | None
    new_key: str | None
    max_body: int
    max_running: int
    max_queue: int
    request_timeout: float | None
    drain_seconds: float
    keep_alive_seconds: float
    tls_cert: str | None
    tls_key: str | None


@click.command(short_help="Serve programs, and models, behind OpenAI's HTTP API.")
@click.argument("targets", metavar="[FILE|NAME]...", nargs=-1, shell_complete=complete_programs)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a parameter of all programs that have it; requests cannot.",
)
@click.option(
    "--default",
    "defaults",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a parameter where a request does not say it.",
)
@click.option(
    "--model", "models", metavar="NAME=ID|PATH", multiple=True, help="Put a model of the programs on another one."
)
@click.option(
    "--adapter",
    "adapters",
    metavar="NAME=FOLDER|ID",
    multiple=True,
    help="Merge a LoRA adapter in PEFT's format into a model of the programs.",
)
@click.option(
    "--draft", "drafts", metavar="[NAME=]DRAFT", multiple=True, help="What proposes tokens, as in `qpdsl run`."
)
@click.option(
    "--expose",
    metavar="NAME[=ID]",
    multiple=True,
    help="Serve a model itself too: one of the programs by its name there, or any by its id.",
)
@click.option(
    "--ignore",
    metavar="FIELD",
    multiple=True,
    help="Drop this field of requests, which would be refused else: for clients that always send it.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="The seed of programs' requests without one.  [default: another one each time]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen here.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free one.")
@click.option(
    "--keys", metavar="FILE", type=FileName(dash="keys have a file of their own"), help="Let only these keys in."
)
@click.option("--new-key", metavar="NAME", help="Print a new key, put its hash into the file of --keys, and end.")
@click.option(
    "--max-body", type=click.IntRange(min=1), default=4 << 20, show_default=True, metavar="BYTES", help="Of a request."
)
@click.option(
    "--max-running", type=click.IntRange(min=1), default=64, show_default=True, help="Requests that run at once."
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Requests that wait; the next one gets 429.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="A request that runs longer ends with 504.  [default: as long as it takes]",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="After Ctrl-C or SIGTERM, requests that run may take so long.",
)
@click.option(
    "--keep-alive-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=15.0,
    show_default=True,
    help="A stream that is silent for so long gets a comment.",
)
@click.option("--tls-cert", metavar="FILE", type=FileName(dash="a certificate is a file"), help="A certificate in PEM.")
@click.option(
    "--tls-key",
    metavar="FILE",
    type=FileName(dash="a key is a file"),
    help=f"The certificate's key in PEM; {_PASSWORD} in the environment unlocks it.",
)
@within_option
@spending_options
@computing_options
@planning_options
@reading_options
@code_option
def command(**values: Any) -> Exit:
    """Serve programs behind OpenAI's API: each is a model of `/v1/chat/completions` and `/v1/completions`.

    A program is a file, or one that is shipped with qpdsl, by its name. All requests share the models, the prefix cache
    and the memory of one engine. The server listens on this machine alone unless `--host` says otherwise. Ctrl-C lets
    it finish what runs.

    \b
    qpdsl serve beam_search best_of_n
    qpdsl serve my.qp --model llm=Qwen/Qwen3-0.6B --expose llm --port 8080
    qpdsl serve --keys keys.txt --new-key alice
    """
    options = ServeOptions(program=None, **values)
    if options.new_key is not None:
        return _new_key(options)
    if options.tls_key is not None and options.tls_cert is None:
        raise UsageError("`--tls-key` needs `--tls-cert`")
    if not options.targets and not any("=" in setting for setting in options.expose):
        raise UsageError("give programs to serve, or a model: `--expose NAME=ID`")
    options.check_spending()
    with interruptible():
        return _serve(options)


def _new_key(options: ServeOptions) -> Exit:
    if options.keys is None:
        raise UsageError("`--new-key` needs `--keys FILE`, where its hash goes")
    from qpdsl.cli.file_guard import Contents, FileGuard
    from qpdsl.serve.http.client_keys import add_key, begins_keys

    assert options.new_key is not None
    contents = Contents("keys of clients", begins_keys)
    target = FileGuard().writes(Path(options.keys), "`--new-key`", contents, overwrite=True)
    put(add_key(target.path, options.new_key))
    say(f"note: `{options.keys}` holds its hash; the key itself is shown this once")
    return Exit.OK


def _serve(options: ServeOptions) -> Exit:
    _check_libraries()
    from qpdsl.cli.diagnostics import show
    from qpdsl.cli.runs.server_check import ask_servers
    from qpdsl.model_location import check_models
    from qpdsl.planning.exit_heads import exit_heads_of
    from qpdsl.planning.planning import Planning
    from qpdsl.planning.target import Target
    from qpdsl.serve.http.bind_address import BindAddress
    from qpdsl.serve.http.client_keys import ClientKeys
    from qpdsl.serve.offered_models import bare_plan, check_offered, exposed_models, fingerprint_of, offered_programs
    from qpdsl.sources.programs import permitting

    planning = Planning.of(options.plan_kind, options.disabled)
    surroundings = options.surroundings()
    offered = [
        replace(one, program=permitting(one.program, options.within))
        for one in offered_programs(options.targets, surroundings, options.settings, options.defaults)
    ]
    for one in offered:
        show(one.program.warnings)
    asked = {id: id for one in offered for id in one.program.models.values()}
    options.check_prices(asked)
    ask_servers(asked, options.server_timeout, quiet=False)
    heads = tuple(exit_heads_of(options.exit_heads).items())
    target = Target(options.device, options.dtype, options.threads, None, heads)
    plans = {one.name: one.plan(planning, target) for one in offered}
    for plan in plans.values():
        check_offered(plan, allow_code=options.allow_code)
    exposed = exposed_models(options.expose, plans.values())
    for name in exposed:
        if name in plans:
            help = f"`--expose OTHER={exposed[name]}` gives it another name"
            raise UsageError(f"`--expose`: `{name}` is a program here, and cannot be a model too", help)
    options.check_used({*asked, *exposed.values()})
    check_models([*exposed.values(), *(id for plan in plans.values() for id in plan.models.values())])
    _name_files(options, surroundings, exposed.values(), dict(heads).values(), plans.values())
    # What is wrong here is told before models are loaded, which takes its time.
    address = BindAddress(options.host, options.port, options.tls_cert, options.tls_key, os.environ.get(_PASSWORD))
    keys = None if options.keys is None else ClientKeys(Path(options.keys))
    bound = address.bound()
    if not address.local and keys is None:
        say(f"warning: whoever reaches {options.host} can use this server, as there are no `--keys`")
    session = _session(options, surroundings, [*plans.values(), *map(bare_plan, dict.fromkeys(exposed.values()))])
    from qpdsl.serve.exposed.exposed_model import ExposedModel
    from qpdsl.serve.http.listening import Listening
    from qpdsl.serve.http.routes import Limits, ServerApp
    from qpdsl.serve.served_program import ServedProgram

    models: list[ServedModel] = [
        ServedProgram(one.name, plans[one.name], session, options.seed, one.fixed, options.ignore) for one in offered
    ]
    models += [
        ExposedModel(name, session.text_model(id), session.engine, fingerprint_of(id), options.ignore)
        for name, id in exposed.items()
    ]
    limits = Limits(
        options.max_body,
        options.max_running,
        options.max_queue,
        options.request_timeout,
        options.keep_alive_seconds,
    )
    app = ServerApp(models, limits, keys, _report)
    listening = Listening(app, session, address, bound, options.drain_seconds)
    leave_signals_alone()

    def told(signal: int) -> None:
        if listening.stopping:
            os._exit(128 + signal)
        listening.stop()

    with handled(told):
        drained = listening.run(lambda: say(f"serving {listed(app.models, last='and')} at {address.url(bound)}"))
    if not drained:
        say(f"note: what still ran after {options.drain_seconds:g} s was given up")
    return Exit.OK if drained else Exit.INTERRUPTED


def _name_files(
    options: ServeOptions,
    surroundings: Surroundings,
    exposed: Iterable[str],
    heads: Iterable[str],
    plans: Collection[PhysicalPlan],
) -> None:
    """Raises UsageError where the file that completions are kept in is another file of the command."""
    from qpdsl.cli.file_guard import FileGuard
    from qpdsl.cli.runs.run_files import name_completions, name_inputs
    from qpdsl.planner.plan.physical import head_folders
    from qpdsl.sources.programs import program_path

    guard = FileGuard()
    for target in options.targets:
        if (program := program_path(target)) is not None:
            guard.reads(program, "a program")
    named = {"--keys": options.keys, "--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    for option, name in named.items():
        if name is not None:
            guard.reads(Path(name), f"the file of `{option}`")
    models = {id: id for plan in plans for id in plan.models.values()} | {id: id for id in exposed}
    folders = {*heads, *(folder for plan in plans for folder in head_folders(plan))}
    name_inputs(guard, options, models, sorted(folders), surroundings)
    name_completions(guard, options)


def _check_libraries() -> None:
    """Raises UsageError where the libraries of the extra are not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "a server needs FastAPI, uvicorn and prometheus-client", "pip install 'qpdsl[serve]'"
        ) from error


def _session(options: ServeOptions, surroundings: Surroundings, plans: Sequence[PhysicalPlan]) -> Session:
    """A session with the models of all plans loaded. Raises ModelError."""
    ids = {name: id for plan in plans for name, id in plan.models.items()}
    notes = LoadNotes(ids, quiet=False)
    notes.begin()
    from qpdsl.executor.events.stream import EventStream

    with collections_paused():
        from qpdsl.session import Session

    session = Session(
        **options.settings_of_session,
        functions=surroundings.functions.values(),
        events=EventStream(_HISTORY, _HISTORY),
        outlive_servers=True,
    )
    for plan in plans:
        session.load(plan, notes.loaded, notes.slow)
    return session


def _report(error: Exception) -> None:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"internal error: {what} (please report it; QPDSL_DEBUG=1 shows where)")
    if os.environ.get("QPDSL_DEBUG"):
        say("".join(traceback.format_exception(error)).rstrip())
