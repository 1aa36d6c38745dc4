"""A SQLite file that a stranger may have made: views and triggers in it are programs, and a view may never end.

After "Security considerations" of SQLite's documentation (https://sqlite.org/security.html).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

# Bytes of a value.
_MAX_VALUE = 256 << 20


def check_tables(database: sqlite3.Connection, needed: Collection[str]) -> None:
    """Raises sqlite3.DatabaseError unless a database has tables alone, these among them. It trusts its schema less."""
    database.execute("PRAGMA trusted_schema = OFF")
    # Columns may be made as they are read.
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    kinds = "SELECT COUNT(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
    if database.execute(kinds).fetchone() != (0,):
        raise sqlite3.DatabaseError("it has views, triggers or virtual tables")
    for name in needed:
        if not database.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).fetchone():
            raise sqlite3.DatabaseError(f"it has no table `{name}`")
