"""A recorded run as one HTML page, and as a file for trace viewers.

Open `page.py` first: it fills a template with the run's data, which is cut down until a browser draws it at
once, however long the run was. The page loads nothing from elsewhere.
"""
