"""Pictures of measurements: points with intervals over a cost, for terminals and as SVG.

Open `scatter.py` first: what a picture shows. `text_scatter.py` and `svg_scatter.py` draw the same `Scatter`, with the
ticks of `scales.py`; `pareto.py` says which points lie on the front. The same points give the same bytes. Nothing here
imports anything of the package, so every page and command can draw.
"""
