"""A recorded run as one HTML page, and as a file for trace viewers; parts of the page for notebooks.

Open `page.py` first, then `sections.py`: all that a page says is text in it, made of the same state as the screens, and
cut down until a browser draws it at once, however long the run was. The page loads nothing from elsewhere.
"""
