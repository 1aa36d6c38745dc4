"""The `.qp` language: source text to a frozen syntax tree, with every error located."""
