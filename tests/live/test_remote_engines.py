"""Whole programs with their generator on a real server: run, replayed, refused, and run through a server's death."""

from __future__ import annotations
