"""Parquet files, read by pyarrow."""

from __future__ import annotations

from qpdsl.errors import DataError, UsageError
from qpdsl.inputs.formats.data_record import DataRecord, RecordSet
from qpdsl.inputs.formats.plain_values import plain_fields


def read_parquet(name: str, data: bytes) -> RecordSet:
    """The rows of a Parquet file. Raises DataError, and UsageError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(f"{name}: Parquet files need pyarrow", "`pip install 'qpdsl[data]'`") from error
    try:
        # In one thread: the rows are few, and threads of a library outlive the reading.
        rows = pq.read_table(pa.BufferReader(data), use_threads=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: broken Parquet file: {str(error).splitlines()[0]}") from error
    left_out: set[str] = set()
    records = tuple(DataRecord(number, plain_fields(row, left_out)) for number, row in enumerate(rows, 1))
    return RecordSet("Parquet", "row", records, left_out=tuple(sorted(left_out)))
