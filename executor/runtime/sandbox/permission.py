"""Whether a caller lets code run that a model wrote."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

# Code runs though a wall of the sandbox is lacking.
UNCONFINED: Final = "unconfined"
# True: in a sandbox with all its walls.
CodePermission: TypeAlias = bool | Literal["unconfined"]
