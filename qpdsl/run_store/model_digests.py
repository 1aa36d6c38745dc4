"""What tells the models of a run from others: digests of their files, or of what a server was seen to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.grammar.model_id import is_remote
from qpdsl.model_digest import location_digest, tokens_digest
from qpdsl.model_location import own_places

if TYPE_CHECKING:
    from qpdsl.session import Session


def model_digests(models: Mapping[str, str], session: Callable[[], Session]) -> dict[str, str]:
    """A digest of every model, by its name in the program.

    `session` opens one with the models loaded. It is called where files alone do not tell: the version of a hub model
    is known only once it is in the cache, and what a server is once it is asked. Raises ModelError, also for a folder
    that is missing.
    """
    places = {name: [place for place, _ in own_places(model)] for name, model in models.items()}
    opened = session() if any(map(is_remote, models.values())) or not _are_folders(places) else None
    digests = {}
    for name, own in places.items():
        if is_remote(models[name]):
            assert opened is not None
            tokens = " ".join(tokens_digest(place) for place in own)
            digests[name] = " ".join(filter(None, (opened.server_digest(models[name]), tokens)))
        else:
            digests[name] = location_digest(*own)
    return digests


def _are_folders(places: Mapping[str, list[Path | str]]) -> bool:
    return all(isinstance(place, Path) and place.is_dir() for own in places.values() for place in own)
