"""How much longer a text becomes by the replacements of a tokenizer.json, one after another."""

from __future__ import annotations

from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError

# Replacements of real tokenizers exchange letters, or take spaces away.
_MAX_GROWTH = 1000.0
_PARTS = {"normalizer": "normalizers", "decoder": "decoders"}


def check_growth(tokenizer: dict[str, Any]) -> None:
    """Refuses replacements that make a text so long that the tokenizer never ends. Raises CheckpointError."""
    for part, parts in _PARTS.items():
        growth = _growth(tokenizer.get(part), parts)
        if not growth <= _MAX_GROWTH:
            raise CheckpointError(f"its tokenizer.json has a `{part}` that makes a text {growth:.0g} times longer")


def _growth(step: Any, parts: str) -> float:
    if not isinstance(step, dict):
        return 1.0
    product = 1.0
    for inner in step[parts] if isinstance(step.get(parts), list) else ():
        product *= _growth(inner, parts)
    written, pattern = step.get("content"), step.get("pattern")
    if not isinstance(written, str) or not isinstance(pattern, dict):
        return product
    # What a regex finds may be a letter, or nothing between two.
    found = pattern.get("String")
    return product * (max(1.0, len(written) / len(found)) if isinstance(found, str) and found else 1.0 + len(written))
