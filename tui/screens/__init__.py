"""The four screens, each a widget over the state of a run.

Open `view.py` first, which they share. A screen draws from the state and keeps only what the user did on it: cursor,
filter, order.
"""
