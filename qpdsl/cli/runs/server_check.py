"""Asking the servers of a run what they can do, and refusing what they cannot, before it is planned or sent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from qpdsl.cli.console import is_terminal, say
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.source import Source
from qpdsl.model_location import check_models, locate_tokenizer
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.remote.spending import Spending
from qpdsl.sources.programs import find_source

if TYPE_CHECKING:
    from qpdsl.executor.remote.server.abilities import Abilities


def ask_servers(models: Mapping[str, str], patience: float | None, *, quiet: bool) -> dict[str, Abilities]:
    """What the servers of these models can do, by the models' ids: those that are not known yet are asked.

    `models` are the ids by name; a server that answers nothing for `patience` seconds is given up, None for as long as
    runs wait. Without `quiet` it is said on a terminal who is asked. Raises ModelError.
    """
    remote = [id for id in dict.fromkeys(models.values()) if is_remote(id)]
    if not remote:
        return {}
    check_models(remote)
    from qpdsl.remote.servers import Servers

    spending = Spending() if patience is None else Spending(server_timeout=patience)
    servers, found = Servers(spending, locate_tokenizer), {}
    for model in remote:
        if not quiet and is_terminal(sys.stderr):
            say(f"{model}: asking its server what it can do …")
        found[model] = servers.abilities_of(model)
    return found


def refuse_unmet(
    plans: Iterable[PhysicalPlan], abilities: Mapping[str, Abilities], source: Callable[[], Source | None]
) -> None:
    """Raises QpError where plans need what servers lack, and UnmetNeeds where the program's `source` is not known."""
    if not abilities:
        return
    from qpdsl.remote.needs import UnmetNeeds, diagnostics, unmet

    for plan in plans:
        if needs := unmet(plan, abilities):
            if (text := source()) is None:
                raise UnmetNeeds(needs)
            raise QpError(diagnostics(needs, plan.models), text)


def source_of(target: str | None, pipeline: str | None = None) -> Source | None:
    """The text of the program that a command names; None where that is standard input, which is read once."""
    if pipeline is not None:
        return Source("-e", pipeline)
    return None if target is None or target == "-" else find_source(target)
