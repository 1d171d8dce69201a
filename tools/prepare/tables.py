"""Records of tables: csv by Python's reader, parquet and arrow by pyarrow, in batches of bounded size."""

import csv

from prepare import bounds
from prepare.errors import Refused, UserError, first_line
from prepare.json_stream import lines_of

# Few, since a dictionary makes a megabyte of each row of a small file.
BATCH_ROWS = 32
TAB = "\t"
DELIMITERS = {",": "commas", TAB: "tabs", ";": "semicolons", "|": "vertical bars"}
ENDINGS = {",": ".csv", TAB: ".tsv"}


class RowLines:
    """The lines of a csv file for its reader, which puts quoted fields together from any number of them."""

    def __init__(self, file, path, delimiter):
        self.lines = lines_of(file)
        self.path = path
        self.delimiter = delimiter
        self.size = 0  # of the row that is read

    def __iter__(self):
        return self

    def __next__(self):
        number, line = next(self.lines)
        self.size += bounds.MOST_RECORD_CHARACTERS + 1 if isinstance(line, Refused) else len(line)
        if self.size > bounds.MOST_RECORD_CHARACTERS:
            raise UserError(f"[prepare] {self.path}:{number}: a row of more than {bounds.MOST_RECORD_CHARACTERS} characters; split it")
        if number == 1:
            check_delimiter(line, self.delimiter, self.path)
        return line


def check_delimiter(names, delimiter, path):
    """Refuses a first line whose names have something else between them."""
    other = next((one for one in DELIMITERS if one in names), None) if delimiter not in names else None
    if other is not None:
        wanted, ending = DELIMITERS[delimiter], f", or give it the ending {ENDINGS[other]}" if other in ENDINGS else ""
        raise UserError(f"[prepare] {path}:1: its names have {DELIMITERS[other]} between them; a {ENDINGS[delimiter]} needs {wanted}; save it with {wanted}{ending}")


def tsv_records(file, path):
    return csv_records(file, path, TAB)


def csv_records(file, path, delimiter=","):
    csv.field_size_limit(bounds.MOST_RECORD_CHARACTERS)
    lines = RowLines(file, path, delimiter)
    reader = csv.DictReader(lines, strict=True, restkey=None, delimiter=delimiter)
    try:
        check_names(reader.fieldnames or [], path)
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"[prepare] {path}:{reader.line_num}: {'more' if None in row else 'fewer'} fields than the {len(reader.fieldnames)} of the first line; mend the row")
            lines.size = 0
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"[prepare] {path}:{reader.line_num}: {error}; give {'tab' if delimiter == TAB else 'comma'}-separated values with a first line of names") from None


def check_names(names, path):
    double = next((name for number, name in enumerate(names) if name in names[:number]), None) if len(set(names)) < len(names) else None
    if double is not None:
        raise UserError(f'[prepare] {path}: two columns are named "{double}", so one would hide the other; rename one')


def parquet_records(path):
    import pyarrow.parquet

    def batches():
        with pyarrow.parquet.ParquetFile(path) as file:
            check_schema(file.schema_arrow, path)
            yield from file.iter_batches(batch_size=BATCH_ROWS)

    return rows_of(batches, path)


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
                check_schema(file.schema, path)
                reader = (file.get_batch(i) for i in range(file.num_record_batches))
            else:
                check_schema(reader.schema, path)
            for batch in reader:
                batch.validate(full=True)  # its offsets are a stranger's
                yield batch

    return rows_of(batches, path)


def check_schema(schema, path):
    check_names(schema.names, path)
    level = [field.type for field in schema]
    for _ in range(bounds.MOST_DEPTH):
        level = [kind.field(number).type for kind in level for number in range(kind.num_fields)]
        if not level:
            return
    raise UserError(f"[prepare] {path}: its columns' types lie more than {bounds.MOST_DEPTH} deep in one another; give a flatter table")


def rows_of(batches, path):
    """Records of what batches() gives, which is read once more before if the file is small."""
    try:
        if path.stat().st_size <= bounds.SMALL_FILE_BYTES:
            for _ in counted(batches(), path):
                pass
        for batch in counted(batches(), path):
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                for row in batch.slice(begin, BATCH_ROWS).to_pylist():
                    yield 0, without_absent(row)
    except MemoryError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own are both
        raise UserError(f"[prepare] {path}: {first_line(error)}; give a whole parquet or arrow file") from None


def counted(batches, path):
    unpacked = bounds.Unpacked(path)
    for batch in batches:
        unpacked.add(decoded_bytes(batch))
        yield batch


def decoded_bytes(batch):
    """Returns the bytes of a batch's values as they are read, each with its own copy of its dictionary entry."""
    import pyarrow

    total = batch.nbytes
    for column in batch.columns:
        if pyarrow.types.is_dictionary(column.type) and len(column.dictionary):
            total += len(column) * (column.dictionary.nbytes // len(column.dictionary))
    return total


def without_absent(value):
    """Messages of a table all have the same members; those that a message lacks are null. They are left out, as a
    template asks whether they are there."""
    if isinstance(value, dict):
        return {name: without_absent(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_absent(item) for item in value]
    return value
