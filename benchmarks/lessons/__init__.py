"""The exercises of a lesson on inference optimization, on the real engine and the built-in models; no simulator.

Open `batching.py` first. Each program is one exercise, takes seconds, and prints the same text each time: it counts
steps, tokens and hits, and times nothing. `page.py` runs all of them and writes what they print into
`benchmarks/lessons/README.md`, which says what each of them asks. `served.py` is what they share.
"""
