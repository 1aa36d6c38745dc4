"""A page about one kept run, or about several beside the first of them.

Open `runs_page.py` first: it puts the page together, from the figures of each side (`side_figures.py`), comparisons
with the first side, pictures (`runs_plot.py`) and pieces of HTML (`page_parts.py`). Its style is that of `tui/report`.
The page loads nothing from elsewhere, and nothing that a model wrote is markup in it.
"""
