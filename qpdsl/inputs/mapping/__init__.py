"""The fields of a record under the names that a program uses: parameters, `answer`, `id`, and others to choose rows by.

Open `field_source.py` first: what a value is made of. `source_text.py` reads the source that a `--map` writes, and
`field_mapping.py` holds a source a name and applies them to records. Known data sets (`qpdsl/inputs/known`) are
mappings too.
"""
