"""The options that make a session: what programs compute on, and what they may take of servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import say
from qpdsl.cli.shared_options import Command, FileName, ProgramOptions, device_option, with_options
from qpdsl.errors import UsageError
from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.plan.physical import KV_TYPES
from qpdsl.settings import DTYPES, check_timeout

if TYPE_CHECKING:
    from qpdsl.executor.engine.memory.kv_cache import KVType
    from qpdsl.grammar.words import WithinLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions(ProgramOptions):
    """What `computing_options` and `spending_options` say, and others that decide what a session computes."""

    device: str
    dtype: str | None
    kv_type: KVType | None
    kv_memory: str | None
    threads: int | None
    deterministic: bool
    compile: bool
    allow_code: bool
    within: WithinLevel | None
    completions: str | None
    max_tokens_total: int | None
    max_cost: float | None
    prices: str | None
    server_timeout: float | None

    @property
    def settings_of_session(self) -> Mapping[str, Any]:
        """These as keywords of `Session`, which tells its notes on stderr."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "kv_type": self.kv_type,
            "kv_bytes": self.kv_memory,
            "threads": self.threads,
            "deterministic": self.deterministic,
            "compile": self.compile,
            "allow_code": self.allow_code,
            "completions": self.completions,
            "max_tokens_total": self.max_tokens_total,
            "max_cost": self.max_cost,
            "prices": self.prices,
            "server_timeout": self.server_timeout,
            "tell": lambda note: say(f"note: {note}"),
        }

    def check_used(self, models: Collection[str]) -> None:
        """Raises UsageError for an option about models in this process, or on servers, where none of `models` is so."""
        remote = [is_remote(model) for model in models]
        here: dict[str, object] = {
            "device": self.device != "cpu",
            "dtype": self.dtype,
            "kv-type": self.kv_type,
            "kv-memory": self.kv_memory,
            "threads": self.threads,
            "deterministic": self.deterministic,
            "compile": self.compile,
        }
        there: dict[str, object] = {
            "max-tokens-total": self.max_tokens_total,
            "max-cost": self.max_cost,
            "server-timeout": self.server_timeout,
        }
        for name, given in here.items():
            if given and remote and all(remote):
                raise UsageError(f"`--{name}` is about models in this process, and all models here are on servers")
        for name, given in there.items():
            if given and not any(remote):
                raise UsageError(f"`--{name}` is about models on servers, and no model here is on one")

    def check_spending(self) -> None:
        """Raises UsageError and ArgumentError for bounds that are none."""
        if self.max_cost is not None and self.prices is None:
            raise UsageError("`--max-cost` needs `--prices`, which says what tokens cost")
        check_timeout(self.server_timeout, "server_timeout")

    def check_prices(self, models: Collection[str], *, budget: bool = False) -> None:
        """Reads the table of prices for those of `models` that are on servers, before these are sent anything.

        `budget` says that a problem has a budget of money. Raises ModelError where the table cannot be read, and where
        money is bounded and one of them has no price; UsageError where a budget of money would count nothing.
        """
        from qpdsl.executor.checkpoint.errors import ModelError
        from qpdsl.executor.remote.meter import Meter, Prices
        from qpdsl.executor.remote.server.address import Address

        if budget and not any(map(is_remote, models)):
            raise UsageError(
                "a budget of `cost` counts what servers take, and no model here is on one",
                "`--budget tokens=…` or `--budget seconds=…` goes before the budget of the program",
            )
        if budget and self.prices is None:
            raise UsageError("a budget of `cost` needs `--prices`, which says what tokens cost")
        most = 0.0 if budget else self.max_cost
        for model in models:
            address = Address.of(model)
            if self.prices is not None and address is not None:
                try:
                    Meter(None, most, Prices.read(Path(self.prices).expanduser())).check([address.name])
                except ValueError as error:
                    raise ModelError(model, str(error)) from error


def _memory(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from qpdsl.executor.engine.memory.budget import parse

    try:
        if value is not None:
            parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


_COMPUTING = (
    device_option,
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        help="What to compute in.  [default: float32 on a CPU, else the model's own]",
    ),
    click.option(
        "--kv-type",
        type=click.Choice(KV_TYPES),
        help="Keep what the models have read in eight or four bits: more fits, tokens can differ.",
    ),
    click.option(
        "--kv-memory",
        metavar="AMOUNT",
        callback=_memory,
        help="Memory for what the models have read (KV cache), all together: 4GiB, or 50% of the device's.  "
        "[default: a quarter of what is free, 2 GiB at the most; on a GPU what the largest step leaves]",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="The same bits whatever else is in the batch. On a GPU that is slower; on a CPU in float32 it is always "
        "so.",
    ),
    click.option(
        "--compile",
        is_flag=True,
        help="On a GPU, compile the layers of models that keep transformers' modules: minutes once, then faster steps.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="CPU threads.  [default: one a core, one for small models]",
    ),
)


_SPENDING = (
    click.option(
        "--completions",
        metavar="FILE",
        type=FileName(dash="completions have a file of their own"),
        help="Keep what models on servers write in FILE, and ask for nothing twice; `none` keeps nothing.  [default: a "
        "file in the user's cache folder]",
    ),
    click.option(
        "--max-tokens-total",
        type=click.IntRange(min=1),
        metavar="N",
        help="End the run once servers were sent, and wrote, so many tokens.",
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="X",
        help="End the run once they cost so much, by --prices.",
    ),
    click.option(
        "--prices",
        metavar="FILE",
        type=FileName(dash="prices are in a file"),
        help='What a million tokens cost, by model: {"NAME": {"input": 0.15, "cached_input": 0.075, "output": 0.6}}.',
    ),
    click.option(
        "--server-timeout",
        type=float,
        metavar="SECONDS",
        help="Give up a server that has answered nothing for so long; until then it is waited for.  [default: 600]",
    ),
)


def computing_options(command: Command) -> Command:
    """The options of every command that loads models and runs programs."""
    return with_options(_COMPUTING, command)


def spending_options(command: Command) -> Command:
    """The options of every command that may ask models on servers for much: what they may take, and what is kept."""
    return with_options(_SPENDING, command)
