"""Data sets as rows: files of many kinds, read and checked before anything runs.

    file, folder, hub ──data_source: records, datasets_library──► DataRecord
                      ──chosen_records: field_mapping, known_sets──► those to run, renamed
                      ──rows──► InputRow

Open `input_row.py` first: what a row is. `DataSettings` are what a user says of data, and `rows.py` makes rows by it.
`contest_tests.py` reads the tests of LiveCodeBench. `field_notes.py` says how the data was understood, and what of it
is not used.

What must hold: the same data and options give the same rows in the same order on every machine. Every fault of the
rows that are taken is named by its place, before anything runs.
"""
