"""Data sets as rows: files of many kinds, read and checked before anything runs.

    file, folder, hub ──data_source, formats/──► DataRecord
                      ──chosen_records: mapping/, known/, row_condition, selection──► those to run, renamed
                      ──rows: row_binding──► InputRow

Open `input_row.py` first: what a row is. `read_options.py` is what a user says of data, and `rows.py` makes rows by it.
`field_notes.py` says how the data was understood, and what of it is not used. `row_groups.py` parts rows by a
field. `formats/` reads files, `mapping/` gives
fields other names, `known/` has the forms in which benchmarks are published.

What must hold: the same data and options give the same rows in the same order on every machine. Every fault of the
rows that are taken is named by its place, before anything runs.
"""
