"""Records of tables: csv by Python's reader, parquet and arrow by pyarrow, in batches of bounded size."""

import csv
import json

from prepare.errors import UserError, first_line

BATCH_ROWS = 1024
MOST_FIELD_CHARACTERS = 1 << 28


def csv_records(file, path):
    csv.field_size_limit(MOST_FIELD_CHARACTERS)
    reader = csv.DictReader(file, strict=True, restkey=None)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"[prepare] {path}:{reader.line_num}: {'more' if None in row else 'fewer'} fields than the {len(reader.fieldnames)} of the first line; mend the row")
            yield reader.line_num, {name: from_field(text) for name, text in row.items()}
    except csv.Error as error:
        raise UserError(f"[prepare] {path}:{reader.line_num}: {error}; give comma-separated values with a first line of names") from None


def from_field(text):
    """A list or an object where the field holds one as JSON: messages, token ids."""
    if text[:1] in {"[", "{"}:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def parquet_records(path):
    import pyarrow.parquet

    def batches():
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS)

    return rows_of(batches(), path)


def arrow_records(path):
    """A stream (as Hugging Face's cache has it) or a file of Arrow's format."""
    import pyarrow

    def batches():
        with pyarrow.memory_map(str(path)) as mapped:
            try:
                reader = pyarrow.ipc.open_stream(mapped)
            except pyarrow.ArrowInvalid:
                mapped.seek(0)
                file = pyarrow.ipc.open_file(mapped)
                reader = (file.get_batch(i) for i in range(file.num_record_batches))
            yield from reader

    return rows_of(batches(), path)


def rows_of(batches, path):
    try:
        for batch in batches:
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                for row in batch.slice(begin, BATCH_ROWS).to_pylist():
                    yield 0, without_absent(row)
    except (OSError, ValueError) as error:  # pyarrow's own are both
        raise UserError(f"[prepare] {path}: {first_line(error)}; give a whole parquet or arrow file") from None


def without_absent(value):
    """Messages of a table all have the same members; those that a message lacks are null. They are left out, as a
    template asks whether they are there."""
    if isinstance(value, dict):
        return {name: without_absent(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_absent(item) for item in value]
    return value
