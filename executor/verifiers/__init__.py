"""Verifiers: one file a kind, behind one interface."""
