"""Runs and devices, measured."""
