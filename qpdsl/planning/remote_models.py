"""What the planner is told of models on servers: what was found out about them by now. No server is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.plan.physical import PhysicalPlan, RemoteModel


def with_servers(naive: PhysicalPlan) -> PhysicalPlan:
    """The plan with what is known of its models on servers; an id that is no address is left to be refused."""
    remote = [model for model in dict.fromkeys(naive.models.values()) if is_remote(model)]
    return replace(naive, remote=_known(remote)) if remote else naive


def _known(models: Iterable[str]) -> dict[str, RemoteModel]:
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.remote.probe.known_servers import cached_abilities
    from qpdsl.executor.remote.server.address import Address

    known: dict[str, RemoteModel] = {}
    for id in models:
        try:
            address = Address.of(id)
        except ModelError:
            continue
        abilities = None if address is None else cached_abilities(address)
        if abilities is not None:
            able = abilities.capabilities
            known[id] = RemoteModel(
                probed=True,
                repeats=able.repeats,
                greedy=abilities.greedy,
                # Text that is cut into tokens here may not be cut as the server did.
                token_ids=abilities.endpoint == "ids" and abilities.token_ids,
                streams=abilities.streams,
                spare_rows=able.spare_rows,
            )
    return known
