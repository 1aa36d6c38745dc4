"""The settings: each is declared here, once, with its option, its help, its default and what it takes.

`SessionSettings` are those of a session, which Python gives as keywords. `Settings` adds what a program is planned and
run with; the commands `run`, `eval`, `explain`, `serve` and `profile` add a few of their own, declared the same way.
`setting.py` says what a declaration holds, `_program` and its like what a group of them has in common. Results depend
on those with a `fingerprint`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, cast

from qpdsl.arguments import ArgumentError
from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED, CodePermission
from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.words import KV_TYPES, SHORT_DRAFTS, KVType
from qpdsl.session.setting import (
    DeviceName,
    FilePath,
    FlagOrWord,
    HeadFolders,
    Memory,
    Number,
    OneOf,
    Router,
    Seconds,
    Shares,
    Whole,
    check_values,
    declared,
    given,
    option_of,
    setting,
    values_of,
)
from qpdsl.threads import cores

if TYPE_CHECKING:
    from qpdsl.executor.remote.spending import Spending
    from qpdsl.planner.plan.physical import PhysicalPlan

DTYPES = ("float32", "bfloat16", "float16")
# What a program that says nothing itself can be permitted on the command line.
Permitted: TypeAlias = Literal["exact", "replayable", "recorded"]

PROGRAM, DATA, GRADING, ROWS, OUTPUT = "Program", "Data", "Grading", "Rows", "Output"
RANDOMNESS, MODEL, MEMORY, REMOTE = "Randomness", "Model", "Memory", "Remote models"
PLANNER, BUDGET, MEASURING, CLUSTER, SERVER = "Planner", "Budget", "Measuring", "Cluster", "Server"
# The order of `--help`.
HEADINGS = (
    PROGRAM,
    DATA,
    GRADING,
    ROWS,
    SERVER,
    OUTPUT,
    RANDOMNESS,
    MODEL,
    MEMORY,
    REMOTE,
    PLANNER,
    BUDGET,
    MEASURING,
    CLUSTER,
)
_ALL = "run eval explain serve profile optimize"
_program = partial(setting, heading=PROGRAM, on=_ALL)
_planner = partial(setting, heading=PLANNER, on=_ALL)
_remote = partial(setting, heading=REMOTE, on="run eval serve optimize")
_data = partial(setting, heading=DATA, on="run eval explain optimize", needs="input")
_graded = partial(setting, heading=GRADING, on="run eval optimize", needs="input")
_LEARNS = "each replica would learn by itself"
_SPENDS = "each replica would spend as much"


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What a session computes on, and what it may ask of servers. Raises ArgumentError for values that it cannot have.

    `exit_heads` are folders by the names of the models in programs that they are for, or by "" for any.
    """

    device: str = setting(
        "cpu",
        usual=True,
        heading=MODEL,
        kind=DeviceName(),
        on="run eval explain serve profile calibrate optimize",
        about="here",
        fingerprint="device",
        project=True,
        help="Run models on cpu, cuda or cuda:N.",
    )
    dtype: str | None = setting(
        heading=MODEL,
        kind=OneOf(*DTYPES),
        on="run eval explain serve profile calibrate optimize",
        shown="float32 on a CPU, else the model's own, or bfloat16 for float32",
        about="here",
        fingerprint="dtype",
        project=True,
        help="Compute in this type.",
    )
    deterministic: bool = setting(
        False,
        heading=MODEL,
        on="run eval serve",
        about="here",
        fingerprint="deterministic",
        project=True,
        help="Give a sample the same bits in any batch. Slower on a GPU; always so on a CPU in float32.",
    )
    threads: int | None = setting(
        heading=MODEL,
        kind=Whole(1),
        on="run eval explain serve profile calibrate optimize",
        shown="one per core, one for small models",
        about="here",
        project=True,
        help="CPU threads.",
    )
    allow_code: CodePermission = setting(
        False,
        heading=PROGRAM,
        kind=FlagOrWord(UNCONFINED),
        on="run eval explain serve",
        grants=True,
        help="Let `score passes(…)` and the grader `code` run code that a model wrote, in a sandbox. `unconfined` runs "
        "it where the system lacks a wall of it too (see `qpdsl check --sandbox`).",
    )
    share_samples: bool = setting(
        False,
        heading=MODEL,
        help="Draw no sample twice: programs and rows that ask for the same sample share it. Needs float32 on a CPU, "
        "or `deterministic`. Results and counted tokens stay the same; `qpdsl eval` does so where it can.",
    )
    kv_type: KVType | None = setting(
        heading=MEMORY,
        kind=OneOf(*KV_TYPES),
        on="run eval serve",
        about="here",
        fingerprint="kv type",
        help="Quantize the KV cache to 8 bits, or with int4 to 8 and 4: more fits, tokens can differ.",
    )
    kv_bytes: int | str | None = setting(
        heading=MEMORY,
        kind=Memory(),
        on="run eval serve profile",
        option="--kv-memory",
        metavar="AMOUNT",
        shown="a quarter of what is free, at most 2 GiB; on a GPU what the largest step leaves",
        about="here",
        project=True,
        help="Memory for the KV cache of all models: 4GiB, or 50% of the device's.",
    )
    kv_shares: Mapping[str, float] = setting(
        {},
        heading=MEMORY,
        kind=Shares(),
        on="run eval explain serve",
        option="--kv-share",
        metavar="NAME=SHARE",
        shown="all models share it as they need it",
        about="here",
        help="Let the model NAME take at most SHARE of it: llm=75%.",
    )
    max_sequences: int | None = setting(
        heading=MEMORY,
        kind=Whole(1),
        on="run eval explain serve",
        metavar="N",
        shown="what `qpdsl profile` found best, else 128",
        about="here",
        project=True,
        help="Sequences of a model that a step computes, at most.",
    )
    step_tokens: int | None = setting(
        heading=MEMORY,
        kind=Whole(1),
        on="run eval explain serve",
        metavar="N",
        shown="what `qpdsl profile` found best, else 2,048",
        about="here",
        project=True,
        help="Tokens that a step computes; prompts are cut into what decoding leaves of them.",
    )
    router: str | None = setting(
        heading=PLANNER,
        kind=Router(),
        on="run explain",
        metavar="ROUTER",
        shown="a rule for heads, no routing of exits",
        alone=_LEARNS,
        fingerprint="router",
        help="Choose how the head of a constrained `generate` is computed, and which draws of `via amortized(…)` try "
        "their exit: lin_ucb, thompson or exponential learn it, fixed:dense, fixed:rows, fixed:union, fixed:exit, "
        "fixed:rerank and fixed:full always do the same. Heads change no token; exits depend on what earlier runs "
        "learned.",
    )
    exit_heads: Mapping[str, str | Path] = _planner(
        {},
        kind=HeadFolders(),
        option="--exit-head",
        metavar="[NAME=]FOLDER",
        help="Use exit heads fitted by `qpdsl calibrate`, for all models or for NAME. A program that permits it, as "
        "`within loss(0.02)` does, may leave the model early where the measured loss allows it.",
    )
    shadow: float | None = setting(
        heading=MEASURING,
        kind=Number(0, 1),
        on="run explain",
        metavar="SHARE",
        shown="0.02 where `within loss(…)` chose an exit or a filter, else 0",
        help="Have the full model redraw this share of the tokens that an early exit or a filter's small model "
        "decides, and count how often it differs. Tokens stay as they are.",
    )
    completions: str | Path | None = _remote(
        kind=FilePath("completions have a file of their own"),
        metavar="FILE",
        shown="a file in the user's cache folder",
        grants=True,
        help="Cache completions of remote models in FILE, so that nothing is requested twice; `none` for no cache.",
    )
    max_tokens_total: int | None = _remote(
        kind=Whole(1),
        metavar="N",
        about="servers",
        alone=_SPENDS,
        project=True,
        help="Stop after N remote tokens (prompt + completion).",
    )
    max_cost: float | None = _remote(
        kind=Number(0, above=True),
        metavar="X",
        about="servers",
        alone=_SPENDS,
        needs="prices",
        why="which says what tokens cost",
        help="Stop after remote tokens have cost X, by --prices.",
    )
    prices: str | Path | None = _remote(
        kind=FilePath("prices are in a file"),
        metavar="FILE",
        help='Price table, per million tokens: {"NAME": {"input": 0.15, "cached_input": 0.075, "output": 0.6}}.',
    )
    server_timeout: float | None = _remote(
        kind=Seconds(),
        metavar="SECONDS",
        shown="600",
        about="servers",
        project=True,
        help="Give up on a server after SECONDS without a response.",
    )

    def __post_init__(self) -> None:
        check_values(self)
        object.__setattr__(self, "exit_heads", {name: str(folder) for name, folder in self.exit_heads.items()})
        check_threads(self.threads)
        check_memory(self.kv_bytes, self.device)
        if self.share_samples:
            check_sharing(self)

    @property
    def of_session(self) -> SessionSettings:
        """Those of a session, without what a subclass adds: a replica gets them, and a `Session` is made of them."""
        return SessionSettings(**values_of(self, SessionSettings))

    def for_plan(self, plan: PhysicalPlan) -> Self:
        """The same with what a plan has chosen, where it is not set: the type of the KV, and how large steps are."""
        return replace(self.for_steps([plan]), kv_type=self.kv_type or plan.kv_type)

    def for_steps(self, plans: Iterable[PhysicalPlan]) -> Self:
        """The same with steps that are large enough for all of these plans, where they are not set."""
        from qpdsl.planner.plan.physical import StepLimits

        limits = StepLimits.largest(plan.limits for plan in plans)
        return self if limits is None else replace(self, max_sequences=limits.sequences, step_tokens=limits.tokens)

    @property
    def shares_samples(self) -> bool:
        """Whether samples are the same in any batch, so that they can be shared."""
        return self.deterministic or (self.device == "cpu" and self.dtype in (None, "float32"))

    @property
    def keeps_stored_weights(self) -> bool:
        """Whether the weights of a GGUF file or of a quantized checkpoint stay as they are stored."""
        return self.device == "cpu" and self.dtype is None

    @property
    def patience(self) -> float:
        """Seconds without a response after which a server is given up."""
        from qpdsl.executor.remote.server.failures import PATIENCE

        return PATIENCE if self.server_timeout is None else self.server_timeout

    @property
    def spending(self) -> Spending:
        """What may be taken of servers. Raises ArgumentError."""
        from qpdsl.executor.remote.spending import Spending, completions_file

        if self.max_cost is not None and self.prices is None:
            raise ArgumentError("`max_cost` needs `prices`, a file that says what tokens cost")
        return Spending(
            completions_file(self.completions),
            self.completions is not None,
            self.max_tokens_total,
            self.max_cost,
            None if self.prices is None else Path(self.prices).expanduser(),
            self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """How a row is run."""

    seed: int | None = setting(
        usual=True,
        heading=RANDOMNESS,
        kind=Whole(),
        on="run explain serve optimize",
        shown="0",
        project=True,
        help="Same seed, same tokens.",
    )
    row_timeout: float | None = setting(
        heading=ROWS,
        kind=Seconds(),
        on="run eval optimize",
        metavar="SECONDS",
        shown="none",
        project=True,
        help="Fail a row after SECONDS, and go on with the others.",
    )
    priority: int | None = setting(
        heading=ROWS,
        kind=Whole(),
        shown="0",
        help="Runs of a lower number go before what else the session runs. No token depends on it.",
    )

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which data is read, and how. `maps` are `NAME=SOURCE` strings, which go before what `dataset` says.

    Rows are chosen in this order: those that fulfil `where`; all in the order of the seed `shuffle`; those behind the
    first `skip`; then the first `limit`, or with `spread` as many of each value of that field as come to `limit`.
    """

    input: str | None = setting(
        usual=True,
        heading=DATA,
        kind=FilePath(),
        on="run eval explain optimize",
        metavar="DATA",
        complete="data",
        help="Run every row of a file (JSON lines, a JSON array, CSV, TSV or Parquet), of a folder of the library "
        "`datasets`, or of hf:ORG/NAME[:CONFIG][@REVISION] on the Hugging Face hub. Fields are the program's "
        "parameters and override --set; `id` names a row, and `answer`, unless a parameter, is the right answer. "
        "`counting-500` is the shipped data set, `-` standard input.",
    )
    dataset: str | None = _data(
        usual=True,
        complete="forms",
        help="Read the fields of --input as this benchmark publishes them, and grade answers as it does.",
    )
    maps: tuple[str, ...] = _data(
        (),
        usual=True,
        option="--map",
        metavar="NAME=SOURCE",
        help="Make a parameter, `answer`, `id` or a field for --where from a field, `FIELD:regex:PATTERN`, "
        "`FIELD:boxed`, `FIELD:number`, `FIELD:json`, or a text with {FIELD} in it.",
    )
    id: str | None = _data(
        metavar="FIELD",
        shown="id",
        help="The field that names a row.",
    )
    split: str | None = _data(
        metavar="NAME",
        shown="test",
        help="The split of a folder or of a data set on the hub.",
    )
    where: str | None = _data(
        metavar="CONDITION",
        help="Only rows that match CONDITION: \"level >= 3 and subject == 'Algebra'\".",
    )
    shuffle: int | None = _data(
        kind=Whole(),
        metavar="SEED",
        help="Shuffle the rows by SEED.",
    )
    skip: int | None = _data(kind=Whole(0), metavar="N", help="Skip the first N rows.")
    limit: int | None = _data(usual=True, kind=Whole(1), metavar="N", project=True, help="Take at most N rows.")
    urgent: str | None = setting(
        heading=DATA,
        on="run",
        option="--priority",
        metavar="FIELD",
        needs="input",
        help="Rows with a lower whole number in this field go first. Results, and their order, stay the same.",
    )
    spread: str | None = _data(
        metavar="FIELD",
        help="With --limit: take equally many rows of each value of FIELD.",
    )

    def __post_init__(self) -> None:
        check_values(self)
        self.check_data()

    def check_data(self) -> None:
        """Raises UsageError where the settings do not go together."""
        if self.spread is not None and self.limit is None:
            raise UsageError("`--spread` needs `--limit`, which says how many rows there are to be")
        if self.id is not None and any(text.partition("=")[0].strip() == "id" for text in self.maps):
            raise UsageError("`--id` and `--map id=…` both say what names a row; give one of them")

    @property
    def of_data(self) -> DataSettings:
        """These alone, without what a subclass adds."""
        return DataSettings(**values_of(self, DataSettings))


@dataclass(frozen=True, kw_only=True)
class Settings(SessionSettings, RowSettings, DataSettings):
    """What a program is planned and run with, of all that several commands take.

    `text` is the value of the one text parameter that has no other.
    """

    target: str | None = None
    text: str | None = None
    pipeline: str | None = setting(
        usual=True,
        heading=PROGRAM,
        on="run explain",
        option="-e",
        metavar="PIPELINE",
        help="Run a pipeline given here (stages separated by `|`).",
    )
    program: str | None = setting(
        usual=True,
        heading=PROGRAM,
        on="run eval explain profile optimize",
        metavar="NAME",
        complete="names",
        help="Choose a program of a file that has several.",
    )
    assigned: tuple[str, ...] = _program(
        (),
        usual=True,
        option="--set",
        metavar="NAME=VALUE",
        complete="settings",
        help="Set a parameter of the program.",
    )
    models: tuple[str, ...] = _program(
        (),
        usual=True,
        option="--model",
        on=f"{_ALL} check",
        metavar="NAME=ID|PATH",
        complete="models",
        help="Use another model: a folder, a GGUF file, a Hugging Face id, or one on a server (`ollama:NAME`, "
        "`vllm:URL#NAME`). `NAME=` may be left out if the program has one model. `prm=ID kind=KIND` in quotes also "
        "gives the kind of a verifier.",
    )
    adapters: tuple[str, ...] = _program(
        (),
        option="--adapter",
        metavar="NAME=FOLDER|ID",
        complete="adapters",
        help="Merge a LoRA adapter in PEFT's format into a model of the program.",
    )
    drafts: tuple[str, ...] = _program(
        (),
        option="--draft",
        metavar="[NAME=]DRAFT",
        help="Draft tokens for all models, or for NAME, with another model, "
        f"{', '.join(f'`{short}`' for short in SHORT_DRAFTS)} or `none`. Tokens stay the same; speed may not.",
    )
    answer: str | None = _program(
        usual=True,
        metavar="PATTERN",
        help="Find `final_answer` by this instead: `/REGEX/`, `last /REGEX/`, `boxed`, `last_number`, `.FIELD` of "
        "JSON, `text` for the whole text, or an extractor that --python registers.",
    )
    allow_read: tuple[str, ...] = setting(
        (),
        heading=PROGRAM,
        kind=FilePath(),
        on="run eval explain serve profile check lsp optimize",
        metavar="FOLDER",
        grants=True,
        help="Let programs read files in this folder, besides their own.",
    )
    python: tuple[str, ...] = setting(
        (),
        heading=PROGRAM,
        kind=FilePath(),
        on="run eval explain serve profile check lsp optimize",
        metavar="FILE",
        grants=True,
        help="Run a Python file, and let programs use the scorers, extractors and tools that it registers.",
    )
    tools: tuple[str, ...] = setting(
        (),
        option="--tool",
        heading=PROGRAM,
        on="run eval explain serve profile check lsp optimize",
        alone="replicas would keep no call",
        metavar="NAME=FILE.py:FUNCTION|mcp:URL#TOOL",
        grants=True,
        help="Let programs call a typed Python function or a tool of an MCP server: `mcp:http://…#TOOL`, or "
        "`mcp:stdio COMMAND #TOOL`. `pure` behind it shares equal calls, `effects` never repeats one.",
    )
    within: Permitted | None = setting(
        heading=REMOTE,
        kind=OneOf("exact", "replayable", "recorded"),
        on="run eval explain serve",
        shown="replayable",
        help="Permit remote models where the program does not say: none (exact), those that repeat samples by seed "
        "(replayable), or any (recorded).",
    )
    plan_kind: str = _planner(
        "optimized",
        kind=OneOf("optimized", "naive"),
        option="--plan",
        help="`naive` runs the program as written, without rules.",
    )
    disabled: tuple[str, ...] = _planner(
        (),
        option="--disable-rule",
        metavar="RULE",
        complete="rules",
        help="Plan without a rule; `explain --verbose` lists those that changed the plan.",
    )
    budget: str | None = setting(
        usual=True,
        heading=BUDGET,
        on="run eval explain",
        metavar="UNIT=AMOUNT",
        shown="what the program says",
        help="Average budget per problem (programs with `auto` or `strategy`): tokens=2000, thought_tokens=800, "
        "seconds=1.5 or cost=0.002; accuracy=0.9 is the least that has 90% right, 'accuracy=0.9 or cost=0.02' gives it "
        "up for a limit.",
    )
    policy: str | None = setting(
        heading=BUDGET,
        on="run explain",
        metavar="RUN",
        complete="runs",
        shown="learned from the saved runs",
        help="Decide under the budget as this saved run did.",
    )
    grader: str | None = _graded(
        usual=True,
        metavar="GRADER",
        shown="that of --dataset, else equal",
        help="How answers are graded: equal, text, contains, number, number(0.01), math, choice, json, code, ifeval, "
        "calls, python:FILE.py:FUNCTION or judge:PROGRAM.",
    )
    candidates: bool = _graded(
        False,
        help="Record the candidates of the last choice, and report avg@k, pass@k, pass^k, cons@k and best@k.",
    )
    by: str | None = _graded(metavar="FIELD", help="Break accuracy down by FIELD.")
    concurrency: int | None = setting(
        heading=ROWS,
        kind=Whole(1),
        on="run eval explain",
        metavar="N",
        shown="what the plan says",
        needs="input",
        project=True,
        help="Rows that run at the same time.",
    )
    statistics: bool = setting(
        True,
        heading=MEASURING,
        on="run explain",
        envvar="QPDSL_STATISTICS",
        help="Remember the rows and tokens of each operator for later plans; QPDSL_STATISTICS=0 for never.",
    )
    cluster: str | None = setting(
        heading=CLUSTER,
        on="run eval serve",
        metavar="ADDRESS",
        help="Run rows, or answer requests, on several replicas: local:4 (processes of this machine), local:1..4 (as "
        "many as needed), ray:4 (starts a Ray), ray://HOST:PORT?replicas=8 (uses a running one). Results stay the "
        "same.",
    )
    allow_mixed: bool = setting(
        False,
        heading=CLUSTER,
        on="run eval",
        needs="cluster",
        why="without which there is one process",
        help="Use replicas whose results could differ in bits too, and mark their rows.",
    )
    overwrite: bool = setting(
        False, usual=True, heading=OUTPUT, on="run eval serve", help="Replace the files of --output."
    )
    trace: str | None = setting(
        heading=OUTPUT,
        on="run eval serve",
        kind=FilePath("a trace has a file of its own"),
        metavar="FILE",
        help="Write events to FILE as they happen; `qpdsl replay` and `qpdsl report` show it.",
    )
    otel: str | None = setting(
        heading=OUTPUT,
        on="run eval serve",
        metavar="ENDPOINT",
        shown="that of OTEL_EXPORTER_OTLP_ENDPOINT, if it is set",
        help="Send OpenTelemetry's spans and metrics to this OTLP endpoint, such as http://localhost:4318.",
    )
    tui: bool = setting(
        False,
        usual=True,
        heading=OUTPUT,
        on="run eval serve",
        help="Watch it on a dashboard; `qpdsl top` does so from another terminal.",
    )

    quiet: bool = setting(
        False,
        heading=OUTPUT,
        on="run eval serve",
        short="-q",
        project=True,
        help="Say nothing of what goes on: no notes, no progress. Errors, warnings and results stay.",
    )
    verbose: bool = setting(
        False,
        heading=OUTPUT,
        on="run eval serve",
        short="-v",
        project=True,
        help="Say each step as it begins, and what was loaded.",
    )

    def __post_init__(self) -> None:
        SessionSettings.__post_init__(self)
        self.check_data()

    def check(self) -> None:
        """Raises UsageError where settings do not go together on a command line."""
        known = {name: one for name, one, _ in declared(self)}
        for name, one in given(self):
            if one.needs is not None and getattr(self, one.needs) in (None, False, "none"):
                why = f", {one.why}" if one.why else ""
                raise UsageError(
                    f"`{option_of(name, one)}` needs `{option_of(one.needs, known[one.needs])}`{why}",
                    "`--rows` shows what one answer was chosen from" if name == "candidates" else None,
                )
        if self.input is not None and self.text is not None:
            raise UsageError("the texts of `--input` are its rows'", "leave out the text, or `--input`")
        if self.grader is not None:
            from qpdsl.runs.graders.known_graders import check_grader

            check_grader(self.grader)
        if self.quiet and self.verbose:
            raise UsageError("`--quiet` and `--verbose` go in two directions; give one of them")
        if self.cluster is not None:
            self.check_cluster()
        if self.tui and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("`--tui` needs a terminal", "`qpdsl top` shows it in another one")

    def check_cluster(self, what: Literal["rows", "requests"] = "rows") -> None:
        """Raises UsageError where `--cluster` has nothing to give to replicas, or something needs one process."""
        from qpdsl.cluster.cluster_address import ClusterAddress

        if what == "rows" and self.input is None:
            raise UsageError("`--cluster` needs `--input`: it gives rows to replicas")
        for name, one in given(self):
            if one.alone and getattr(self, name) != "none":
                raise UsageError(f"`{option_of(name, one)}` does not go with `--cluster`: {one.alone}")
        ClusterAddress.parse(cast(str, self.cluster))

    def check_used(self, models: Collection[str]) -> None:
        """Raises UsageError for a setting about models of this process, or on servers, where none of `models` is so."""
        remote = [is_remote(model) for model in models]
        for name, one in given(self):
            option = option_of(name, one)
            if one.about == "here" and remote and all(remote):
                raise UsageError(f"`{option}` applies to models of this process only, and all models here are remote")
            if one.about == "servers" and not any(remote):
                raise UsageError(f"`{option}` applies to remote models only")


def check_sharing(settings: SessionSettings) -> None:
    """Raises ArgumentError where a sample may depend on what is computed beside it, so that none can be shared."""
    if settings.shares_samples:
        return
    place = f"`{settings.device}`" if settings.device != "cpu" else f"`{settings.device}` in `{settings.dtype}`"
    help = "compute in float32 on the CPU, or with `deterministic`"
    raise ArgumentError(
        f"`share_samples` needs samples that are the same in any batch, and on {place} they are not; {help}"
    )


def check_memory(kv_bytes: int | str | None, device: str = "cpu") -> None:
    """Raises ArgumentError for more memory than the machine has. What a GPU has is known only where it is used."""
    from qpdsl.executor.engine.memory.budget import amount_text, main_memory, parse

    if kv_bytes is None or device != "cpu":
        return
    amount = parse(kv_bytes, main_memory)
    if amount > main_memory():
        there_is = f"there is {amount_text(main_memory())} for this process"
        raise ArgumentError(f"`kv_bytes` is more memory than there is: it asks for {amount_text(amount)}, {there_is}")


def check_threads(threads: int | None) -> None:
    """Raises ArgumentError for more threads than the machine can run side by side."""
    if threads is not None and threads > cores():
        raise ArgumentError(f"`threads` takes at most {cores()}, as many as this process has cores, not {threads}")
