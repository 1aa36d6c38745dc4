"""From syntax tree to plan: lowering, checking, choosing, explaining. Imports no torch."""
