"""Decode plans: heads, masks, JSON held to a schema, drafts; against each other and against peers."""
