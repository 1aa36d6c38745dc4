"""Files of data as records, whatever their format.

Open `data_record.py` first: what every reader gives. `detection.py` tells the format of a file, by what it holds before
what it is called, and asks the reader for it: `json_lines.py` and `json_array.py` (values by `json_objects.py`),
`delimited.py`, `parquet.py`. `datasets_library.py` reads folders and names on the Hugging Face hub. `plain_values.py`
makes JSON values of what Parquet and `datasets` hold.

A reader knows no program: it says what a file holds, and every fault of it by its place. A file that is no data of a
known format raises DataError.
"""
