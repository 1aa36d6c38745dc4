"""Stages to operators, with all errors in one go."""
