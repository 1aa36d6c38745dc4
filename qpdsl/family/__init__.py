"""How the built-in models are made and measured."""
