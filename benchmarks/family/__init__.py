"""The built-in models, measured."""
