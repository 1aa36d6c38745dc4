"""What happened in a run: events, as they happen and as they were recorded.

Open `events.py` first: runtime and engine emit these small frozen events. `stream.py` hands each to its readers, many
at once where these are patient, and keeps a bounded history for readers that come late. Progress bar, dashboard, trace
and report are all readers, and none of them may make the run wait: a `Feed` puts a bounded queue and a thread before
every file and socket. `codec.py` writes events as versioned lines of JSON and reads them back; it skips unknown kinds
and fields, so that newer traces stay readable. `trace.py` reads and writes trace files, and has the feeds. Nothing here
loads torch, so that a dashboard starts at once.
"""
