"""The commands that show a run: on the dashboard while it goes on or afterwards, or as a page."""
