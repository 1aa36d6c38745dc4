"""What the events of a run add up to, without a screen: the screens and the report are drawn from it.

Open `run_state.py` first: `RunState` takes events one by one. `event_source.py` says where they come from, a run's
socket or a recorded run, and replays the latter: forwards a slice of time at once, backwards by building
the state again beside the old one. An event may be missing or unknown; no state may rely on having seen every one.
"""
