"""Configurations of a few models by their public names, for tables of models that are not on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("published_models.json")


@cache
def published_models() -> Mapping[str, Mapping[str, Any]]:
    """What a config.json of each says, as far as its size depends on it."""
    models: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return models
