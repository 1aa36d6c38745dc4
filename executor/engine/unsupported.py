"""The refusal of a model at load."""

from __future__ import annotations


class UnsupportedModel(Exception):
    """A model that cannot run on the paged engine; the message says why."""
