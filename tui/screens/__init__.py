"""The four screens, each a widget over the state of a run."""
