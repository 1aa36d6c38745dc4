"""What shows a run: the dashboard, replays, reports. It reads events and rendered plans, and runs nothing.

Open `app.py` first: it is the dashboard, screens over one source of events. `resilient_app.py` has it go on where a
key or the palette fails; `terminal.py` and `changed_cells.py` lie between it and the terminal. `state/` adds events up
without a screen, `widgets/` are the parts of a screen, `screens/` the screens, `report/` the page, parts of which
notebooks show, and the file for trace viewers. The dashboard is a process of its own, also under `qpdsl run --tui`: it
reads the lines that `qpdsl top` reads from the run's socket, so a run outlives its dashboard. Nothing here may load
torch or import the planner.
"""
