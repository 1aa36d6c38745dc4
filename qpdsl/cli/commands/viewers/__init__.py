"""The commands that show a run: on the dashboard, live or recorded, or as a page. None of them loads torch."""
