"""Where a `$ref` of a JSON Schema leads, inside its own document: JSON Pointer (RFC 6901) as a fragment of a URI.

The checker and the check of records resolve references here, so that they read the same schema.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urljoin


def pointer_of(root: Any, reference: str) -> str:
    """The pointer that a reference in the document `root` is, `#/…` without its `#`; empty for the document itself.

    Raises LookupError, with the reason, where it leads out of the document or is no pointer.
    """
    address, _, pointer = reference.partition("#")
    own = root.get("$id") if isinstance(root, dict) else None
    base = own.partition("#")[0] if isinstance(own, str) else ""
    if address and urljoin(base, address) != base:
        raise LookupError(f"`$ref` {reference} leads to another document")
    if pointer and not pointer.startswith("/"):
        raise LookupError(f"`$ref` {reference} is no JSON Pointer, such as `#/$defs/name`")
    return pointer


def target_of(root: Any, reference: str) -> Any:
    """What a reference in the document `root` leads to. Raises LookupError, with the reason, where that is nothing."""
    target = root
    for part in pointer_of(root, reference).split("/")[1:]:
        name = unquote(part, errors="replace").replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and name.isascii() and name == str(int(name)):
            target = target[int(name)] if int(name) < len(target) else None
        else:
            target = target.get(name) if isinstance(target, dict) else None
        if target is None:
            raise LookupError(f"`$ref` {reference} leads to nothing")
    return target
