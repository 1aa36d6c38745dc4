"""`qpdsl serve`: programs, and bare models, behind OpenAI's HTTP API."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.project_command import ProjectCommand
from qpdsl.cli.runs.run_options import loaded_session
from qpdsl.cli.shared_options import setting_options, targets_argument
from qpdsl.cli.signals import end_by_second_signal, handled, interruptible
from qpdsl.errors import UsageError, installing, reason
from qpdsl.grammar.suggest import listed
from qpdsl.session.setting import FilePath, Number, Whole, setting
from qpdsl.session.settings import PROGRAM, SERVER, Settings

if TYPE_CHECKING:
    from qpdsl.cli.file_guard import OutputFile
    from qpdsl.cli.watched import WatchedProcess
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.serve.http.access_log import AccessLog
    from qpdsl.serve.offered_models import Offer
    from qpdsl.serve.replicas.replica_pool import ReplicaPool
    from qpdsl.session.surroundings import Surroundings

# What the event stream keeps for whoever comes to watch: the latest requests, and as many steps of the engine.
_HISTORY = 1024
# Descriptors that are not for connections: models, libraries, servers of remote models.
_OTHER_DESCRIPTORS = 64
# Holds what the key of TLS is locked with: who lists processes sees their arguments.
_PASSWORD = "QPDSL_TLS_KEY_PASSWORD"
_own = partial(setting, heading=PROGRAM, on="serve")
_server = partial(_own, heading=SERVER)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Settings):
    """What `qpdsl serve` takes besides the settings of all commands."""

    targets: tuple[str, ...] = ()
    defaults: tuple[str, ...] = _own(
        (),
        usual=True,
        option="--default",
        metavar="NAME=VALUE",
        help="Set a parameter where a request does not.",
    )
    expose: tuple[str, ...] = _own(
        (),
        usual=True,
        metavar="[NAME=]ID",
        help="Serve a model itself too: one of the programs by its name there, or any by its id.",
    )
    ignore: tuple[str, ...] = _server(
        (),
        usual=True,
        metavar="FIELD",
        help="Ignore this field of requests instead of rejecting it, for clients that always send it.",
    )
    lenient: bool = _server(
        False, help="Ignore any field, and any turn, that a program has no place for; a header says what was left out."
    )
    host: str = _server("127.0.0.1", usual=True, help="Address to listen on.")
    port: int = _server(8000, usual=True, kind=Whole(0, 65535), help="Port to listen on; 0 for any free one.")
    keys: str | None = _server(
        usual=True,
        kind=FilePath("keys have a file of their own"),
        metavar="FILE",
        help="Require one of the API keys in FILE.",
    )
    new_key: str | None = _server(
        usual=True,
        metavar="NAME",
        help="Print a new API key, add its hash to the file of --keys, and exit.",
    )
    shared_cache: bool = _server(
        False,
        needs="keys",
        why="without keys all clients share the prefix cache",
        help="Let keys find each other's prompts in the prefix cache: `cached_tokens` and speed tell who asked what.",
    )
    allow_host: tuple[str, ...] = _server(
        (),
        metavar="NAME",
        help="Answer requests with this `Host` too; without keys, those to this machine must name it by default.",
    )
    allow_anyone: bool = _server(False, help="Serve without keys at an address that other machines reach.")
    allow_priority: bool = _server(
        False, help="Honour `priority` and `deadline` in requests; by default they are rejected."
    )
    max_per_key: int | None = _server(
        kind=Whole(1),
        needs="keys",
        why="it bounds what each key runs",
        shown="--max-running",
        help="Maximum number of requests of one key that run at once.",
    )
    max_connections: int = _server(1024, kind=Whole(1), help="Maximum number of connections; the next one gets 503.")
    receive_seconds: float = _server(
        30.0,
        kind=Number(0, above=True),
        help="Maximum time for the head of a request to arrive, and again for its body.",
    )
    access_log: str | None = _server(
        kind=FilePath("an access log is a file"),
        metavar="FILE",
        shown="stderr",
        help="Append a line for each request to FILE.",
    )
    max_body: int = _server(4 << 20, kind=Whole(1), metavar="BYTES", help="Maximum size of a request.")
    max_running: int = _server(64, kind=Whole(1), help="Maximum number of requests that run at once.")
    max_queue: int = _server(
        256,
        kind=Whole(0),
        help="Maximum number of requests that wait; the next one gets 429.",
    )
    request_timeout: float | None = _server(
        kind=Number(0, above=True),
        metavar="SECONDS",
        shown="none",
        help="End a request that runs longer with 504.",
    )
    drain_seconds: float = _server(
        30.0,
        kind=Number(0),
        help="After Ctrl-C or SIGTERM, wait so long for running requests.",
    )
    keep_alive_seconds: float = _server(
        15.0,
        kind=Number(0, above=True),
        help="Send a comment on a stream that has been silent for so long.",
    )
    tls_cert: str | None = _server(
        kind=FilePath("a certificate is a file"),
        metavar="FILE",
        help="TLS certificate in PEM.",
    )
    tls_key: str | None = _server(
        kind=FilePath("a key is a file"),
        metavar="FILE",
        help=f"The certificate's key in PEM; {_PASSWORD} in the environment unlocks it.",
    )

    def check(self) -> None:
        """Raises UsageError where options do not go together."""
        if self.tls_key is not None and self.tls_cert is None:
            raise UsageError("`--tls-key` needs `--tls-cert`")
        # A name alone is that of a program's model; what has one of these signs is an id, or has one.
        if not self.targets and not any(sign in text for text in self.expose for sign in "=/:"):
            raise UsageError("give programs to serve, or a model: `--expose ID`")
        super().check()

    def check_cluster(self, what: Literal["rows", "requests"] = "requests") -> None:
        super().check_cluster(what)


@click.command(cls=ProjectCommand)
@targets_argument(required=False)
@setting_options(
    ServeOptions,
    "serve",
    assigned="Set a parameter of all programs that have it; requests cannot.",
    models="Use another Hugging Face id or folder for a model of the programs.",
    adapters="Merge a LoRA adapter in PEFT's format into a model of the programs.",
    seed="Seed of requests for programs that give none.  [default: another for each]",
    overwrite="Replace the file of --trace.",
)
def command(**values: Any) -> int:
    """Serve programs behind OpenAI's API: each is a model of `/v1/chat/completions` and `/v1/completions`.

    A program is a file, or one that is shipped with qpdsl, by its name. All requests share the models, the prefix cache
    and the memory of one engine. The server listens on this machine alone unless `--host` says otherwise. Ctrl-C lets
    it finish what runs.

    \b
    qpdsl serve beam_search best_of_n
    qpdsl serve my.qp --model llm=Qwen/Qwen3-0.6B --expose llm --port 8080
    qpdsl serve --keys keys.txt --new-key alice
    """
    options = ServeOptions(**values)
    if options.new_key is not None:
        return _new_key(options)
    options.check()
    with interruptible():
        if options.tui:
            from qpdsl.cli.runs.dashboard import run_watched

            return run_watched(click.get_current_context().find_root().obj or (), "requests")
        from qpdsl.cli.shared_options import spoken
        from qpdsl.cli.watched import watched

        named = options.targets or options.expose
        with watched("serve", named, options.cluster, history=_HISTORY, **spoken(options)) as process:
            return _serve(process, options)


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


def _serve(process: WatchedProcess, options: ServeOptions) -> Exit:
    _check_libraries()
    from qpdsl.cli.diagnostics import say_internal, show
    from qpdsl.cli.shared_options import asking
    from qpdsl.model_location import check_models
    from qpdsl.serve.http.client_keys import ClientKeys
    from qpdsl.serve.http.listening import BindAddress
    from qpdsl.serve.offered_models import Offer, exposed_models, offered_programs
    from qpdsl.session.prepare import PlanUse, ask_servers, prepare, surroundings_of

    process.prepare("planning")
    surroundings = surroundings_of(options)
    offered = offered_programs(options, options.targets, surroundings, options.defaults)
    for one in offered:
        show(one.bound.program.warnings)
    exposed = exposed_models(options.expose, [one.bound.program.models for one in offered])
    names = {one.name for one in offered}
    for name in exposed:
        if name in names:
            help = f"`--expose OTHER={exposed[name]}` gives it another name"
            raise UsageError(f"`--expose`: `{name}` is a program here, and cannot be a model too", help)
    servers = ask_servers([one.bound for one in offered], options, asking(process), exposed.values())
    plans = {one.name: prepare(one.bound, options, PlanUse(text=True), servers=servers).plan for one in offered}
    check_models(exposed.values())
    trace = _name_files(options, surroundings, exposed.values(), plans.values())
    # What is wrong here is told before models are loaded, which takes its time.
    address = BindAddress(options.host, options.port, options.tls_cert, options.tls_key, os.environ.get(_PASSWORD))
    keys = None if options.keys is None else ClientKeys(Path(options.keys))
    if not address.local and keys is None and not options.allow_anyone:
        help = "give `--keys FILE`, or serve anyone by `--allow-anyone`"
        raise UsageError(f"whoever reaches {options.host} could use this server, as there are no keys", help)
    bound = address.bound()
    offer = Offer(plans, {one.name: one.fixed for one in offered}, exposed, options.seed)
    for why in offer.unreachable:
        say(f"warning: {why}")
    settings = options.for_steps(plans.values())
    if options.cluster is not None:
        pool: ReplicaPool | None = _replicas(offer, settings, surroundings, process)
    else:
        pool, how = None, {"quiet": options.quiet, "verbose": options.verbose, "outlive_servers": True}
        session = loaded_session(settings, offer.plans, surroundings, process.stream, **how)
    from qpdsl.planner.explain.plan import explain_json
    from qpdsl.serve.http.host_check import HostCheck
    from qpdsl.serve.http.listening import Listening, allow_descriptors
    from qpdsl.serve.http.routes import Limits, ServerApp
    from qpdsl.serve.lenience import Lenience
    from qpdsl.session.telemetry import exporting

    limits = Limits(
        options.max_body,
        options.max_running,
        options.max_queue,
        options.request_timeout,
        options.keep_alive_seconds,
        options.receive_seconds,
        options.max_per_key,
        options.allow_priority,
    )
    log = _access_log(options)
    checked = bool(options.allow_host) or (address.local and keys is None)
    hosts = HostCheck.of(options.allow_host) if checked else HostCheck.any()
    app = ServerApp(
        offer.models(session) if pool is None else pool.models,
        limits,
        keys,
        say_internal,
        lenience=Lenience(frozenset(options.ignore), everything=options.lenient),
        hosts=hosts,
        shared_cache=options.shared_cache,
        log=log.write,
        reached=process.stream.emit,
        replicas=pool,
    )
    if pool is not None:
        pool.queued = lambda: app.admission.waiting
    connections = min(options.max_connections, max(allow_descriptors() - _OTHER_DESCRIPTORS, 1))
    listening = Listening(app, pool or session, address, bound, options.drain_seconds, connections, say)
    end_by_second_signal()
    process.record(trace)

    def told(signal: int) -> None:
        if listening.stopping:
            os._exit(Exit.INTERRUPTED)
        if pool is not None and not pool.is_ready:
            raise KeyboardInterrupt
        listening.stop()

    try:
        with handled(told):
            url = address.url(bound)
            served = f"serving {listed(app.models, last='and')} at {url}, and a chat at {url.removesuffix('v1')}"
            shown = {name: explain_json(plan) for name, plan in plans.items()}
            with exporting(process.stream, options.otel, shown):
                drained = listening.run(lambda: say(served))
    finally:
        log.close()
    if not drained:
        say(f"note: what still ran after {options.drain_seconds:g} s was given up")
    return Exit.OK if drained else Exit.INTERRUPTED


def _replicas(offer: Offer, settings: ServeOptions, surroundings: Surroundings, process: WatchedProcess) -> ReplicaPool:
    from qpdsl.cluster.cluster_address import ClusterAddress
    from qpdsl.cluster.replica.messages import ReplicaSetup
    from qpdsl.serve.replicas.replica_pool import ReplicaPool
    from qpdsl.serve.replicas.request_work import RequestWork

    assert settings.cluster is not None
    setup = ReplicaSetup.of(
        RequestWork(offer), settings, python=settings.python, surroundings=surroundings, outlive_servers=True
    )
    address = ClusterAddress.parse(settings.cluster)
    return ReplicaPool(address, offer, setup, process.stream, places=settings.max_running, tell=say)


def _access_log(options: ServeOptions) -> AccessLog:
    from qpdsl.serve.http.access_log import AccessLog

    file = None if options.access_log is None else Path(options.access_log)
    try:
        return AccessLog.at(file)
    except OSError as error:
        raise UsageError(f"`--access-log`: cannot write `{file}`: {reason(error)}") from error


def _name_files(
    options: ServeOptions,
    surroundings: Surroundings,
    exposed: Iterable[str],
    plans: Collection[PhysicalPlan],
) -> OutputFile | None:
    """The trace, if one is wanted. Raises UsageError where a file that is written is another file of the command."""
    from qpdsl.cli.file_guard import Contents
    from qpdsl.cli.runs.run_files import TRACE, guard_of, name_completions
    from qpdsl.serve.http.access_log import begins_access_log

    models = {id: id for plan in plans for id in plan.models.values()} | {id: id for id in exposed}
    guard = guard_of(options, options.targets, models, plans, surroundings)
    named = {"--keys": options.keys, "--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    for option, name in named.items():
        if name is not None:
            guard.reads(Path(name), f"the file of `{option}`")
    name_completions(guard, options)
    if options.access_log is not None:
        contents = Contents("an access log", begins_access_log)
        guard.writes(Path(options.access_log), "`--access-log`", contents, overwrite=True)
    if options.trace is None:
        return None
    return guard.writes(Path(options.trace).absolute(), "`--trace`", TRACE, overwrite=options.overwrite)


def _check_libraries() -> None:
    """Raises UsageError where the libraries of the extra are not installed."""
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError("a server needs Starlette, uvicorn and prometheus-client", installing("serve")) from error
