"""What shows a run: the dashboard, replays, reports. Reads events and rendered plans, and runs nothing."""
