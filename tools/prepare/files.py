"""From --dataset_name to files, and from a file to its records."""

import contextlib
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from prepare import bounds, configs, content, hub, json_stream, tables
from prepare.errors import Refused, UserError, first_line

TABLES = {".parquet": tables.parquet_records, ".arrow": tables.arrow_records}
TEXTS = {".jsonl", ".json", ".csv", ".tsv", ".txt"}
PAIRS = {".bin", ".idx"}
PACKED = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile}
KINDS = "json, jsonl, csv, tsv, txt (these also .gz or .xz), parquet, arrow, or Megatron's .bin with its .idx"
# Files of a folder of `datasets` that hold no records.
DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


class Record(NamedTuple):
    path: Path
    number: int  # in the file, from 1
    line: int  # 0: the file has no lines
    value: Any  # a Refused: the reader cannot take it

    @property
    def place(self):
        return f"{self.path}:{self.line}: record {self.number}" if self.line else f"{self.path}: record {self.number}"


def kind_of(path):
    """(the ending that says what is in it, the one that says how it is packed)."""
    packed = path.suffix if path.suffix in PACKED else ""
    return Path(path.name.removesuffix(packed)).suffix, packed


def is_data(path):
    kind, packed = kind_of(path)
    return kind in TEXTS or (not packed and (kind in TABLES or kind == ".bin"))


def records(path, sample_by="line"):
    """A file's Records, one at a time."""
    kind, packed = kind_of(path)
    if packed and kind not in TEXTS or kind not in TEXTS and kind not in TABLES and kind not in PAIRS:
        unpack = "; unpack it: zstd -d" if path.suffix == ".zst" else ""
        raise UserError(f"[prepare] {path}: the ending {path.suffix or path.name} says no kind of data; known are {KINDS}{unpack}")
    other = content.other_content(path, packed, has_records=True) if kind not in PAIRS else None
    if other:
        raise UserError(f"[prepare] {path} {other}")
    found = pairs_of(path, kind, packed, sample_by)
    try:
        for number, (line, value) in enumerate(found, 1):
            yield Record(path, number, line, value)
    except UnicodeDecodeError as error:
        raise UserError(f"[prepare] {path}: no UTF-8: {error.reason} (byte {error.object[error.start]:#04x}); convert the file") from None
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"[prepare] {path}: {first_line(error)}; copy the file again") from None
    except (UserError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise UserError(f"[prepare] {path}: {first_line(error)}; give a whole file") from None
    except Exception as error:  # a library that reads what a stranger wrote may raise anything
        raise UserError(f"[prepare] {path}: {type(error).__name__}: {first_line(error)}; give a whole {kind} file") from None


def pairs_of(path, kind, packed, sample_by):
    if kind in PAIRS:
        from prepare import megatron  # needs numpy

        yield from megatron.records(path)
        return
    if kind in TABLES:
        yield from TABLES[kind](path)
        return
    readers = {".jsonl": json_stream.lines, ".json": json_stream.values, ".csv": tables.csv_records,
               ".tsv": tables.tsv_records,
               ".txt": lambda file, _: text_records(file, sample_by)}
    newline = "" if kind in {".csv", ".tsv", ".txt"} else None
    with opened(path, packed) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline) as text:
        yield from readers[kind](text, path)


@contextlib.contextmanager
def opened(path, packed):
    """The unpacked bytes of a file."""
    if not packed:
        with open(path, "rb") as file:
            yield file
        return
    if path.stat().st_size <= bounds.SMALL_FILE_BYTES:
        with PACKED[packed](path, "rb") as file:
            whole = Counted(file, path)
            while whole.read(bounds.BATCH_CHARACTERS):
                pass
    with PACKED[packed](path, "rb") as file:
        yield io.BufferedReader(Counted(file, path), 1 << 16)


class Counted(io.RawIOBase):
    """The bytes of a packed file, up to the bound."""

    def __init__(self, file, path):
        self.file = file
        self.unpacked = bounds.Unpacked(path)

    def readable(self):
        return True

    def readinto(self, buffer):
        count = self.file.readinto(buffer)
        self.unpacked.add(count)
        return count


def text_records(file, sample_by):
    """(line, {"text"}) of each line, paragraph or document. A blank one is no record."""
    if sample_by == "document":
        text = file.read(bounds.MOST_RECORD_CHARACTERS + 1)
        if len(text) > bounds.MOST_RECORD_CHARACTERS:
            yield 1, bounds.too_long()
        elif text.strip():
            yield 1, {"text": text}
        return
    held, begin, size = [], 0, 0

    def record():
        return begin, {"text": "".join(held).rstrip("\r\n")} if size <= bounds.MOST_RECORD_CHARACTERS else bounds.too_long()

    for number, line in json_stream.lines_of(file):
        too_long = isinstance(line, Refused)
        blank = not too_long and not line.strip()
        if held and (blank or sample_by == "line"):
            yield record()
            held, size = [], 0
        if not blank:
            begin = begin if held else number
            size += bounds.MOST_RECORD_CHARACTERS + 1 if too_long else len(line)
            if size <= bounds.MOST_RECORD_CHARACTERS:
                held.append(line)
            else:
                held = [""]
    if held:
        yield record()


def is_file(path):
    """False of a name that no file system takes, too."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path):
    """The same for folders."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def read_text(path, most=bounds.MOST_TEMPLATE_CHARACTERS):
    """The whole of a small text file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(most + 1)
    except UnicodeDecodeError:
        raise UserError(f"[prepare] {path} is not UTF-8; convert it") from None
    if len(text) > most:
        raise UserError(f"[prepare] {path} has more than {most} characters; give the right file")
    return text


def read_json(path, most=bounds.MOST_TEMPLATE_CHARACTERS):
    """The object of a small JSON file."""
    other = content.other_content(path)
    if other:
        raise UserError(f"[prepare] {path} {other}")
    try:
        found = json_stream.parsed(read_text(path, most))
    except ValueError as error:
        raise UserError(f"[prepare] {path}: no JSON: {first_line(error)}; correct the file or download it again") from None
    if not isinstance(found, dict):
        why = str(found) if isinstance(found, Refused) else "it is no object"
        raise UserError(f"[prepare] {path}: {why}; correct the file or download it again")
    return found


def model_folder(name):
    """A folder, the model/ of a run's folder, the base of adapters, or a hub id in the cache."""
    folder = Path(name)
    if not any(is_file(folder / path) for path in ("config.json", "model/config.json")):
        for adapters in (folder, folder / "adapter"):
            if is_file(adapters / "adapter_config.json"):
                name = base_of(adapters)
                folder = Path(name)
                break
    if is_folder(folder):
        of_run = folder / "model"
        return of_run if (of_run / "config.json").is_file() and not (folder / "config.json").is_file() else folder
    found = hub.snapshot("models", name) if is_hub_id(name) else None
    if found is None:
        raise UserError(f"[prepare] model {name} is neither a folder nor in the Hugging Face cache {hub.cache()}; {advice('model', name)}")
    return found


def tokenizer_folder(name):
    """The folder of a model's tokenizer: of adapters that have one of their own, as AutoTokenizer does, that one."""
    folder = Path(name)
    if not any(is_file(folder / path) for path in ("config.json", "model/config.json")):
        for adapters in (folder, folder / "adapter"):
            if is_file(adapters / "adapter_config.json") and is_file(adapters / "tokenizer.json"):
                return adapters
    return model_folder(name)


def base_of(adapters):
    """The model that a folder of adapters names, relative to it where such a folder is there: models/adapter_folder.cpp."""
    path = adapters / "adapter_config.json"
    base = read_json(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(f"[prepare] {path} names no base_model_name_or_path; give the base model's folder")
    return str(adapters / base) if is_folder(adapters / base) else base


def is_hub_id(name):
    return hub.id_and_revision(name)[0].count("/") <= 1 and not name.startswith((".", "/", "~")) and kind_of(Path(name))[0] not in TEXTS | PAIRS | set(TABLES)


def advice(kind, name):
    return f"give a path, or download it first (./tandem fetch {kind} {name})" if is_hub_id(name) else "check the path"


def data_folder(name):
    """The folder of a path or a hub id."""
    folder = Path(name) if is_folder(name) else hub.snapshot("datasets", name) if is_hub_id(name) else None
    if folder is None:
        raise UserError(f"[prepare] dataset {name} is neither a file nor in the Hugging Face cache {hub.cache()}; {advice('dataset', name)}")
    return folder


def data_files(name, config=None):
    """The files of a path, a folder or a hub id, in order of their names; `config`: which of its configs."""
    return [Path(name)] if is_file(name) else files_of(data_folder(name), name, config)[0]


def files_of(folder, name, config=None):
    """(files, the config that they are or None)"""
    given = None
    if configs.has_configs(folder):
        config, given, folder = configs.files_of(folder, name, config)
    elif config is not None:
        raise UserError(f"[prepare] dataset {name} has no configs (README.md lists none); leave --dataset_config out")
    below = data_below(folder, or_dangling=True) if given is None else given
    found = hub.training(folder, below) if given is None else given
    if absent := next((path for path in found if dangles(path)), None):
        fetch = "" if is_folder(name) else f" (./tandem fetch dataset {name})"
        raise UserError(f"[prepare] dataset {name}: {absent} is a link to a file that is not there, as an interrupted download leaves it; download it again{fetch}")
    if given is None:
        hub.check_splits(found, name)
    kinds = sorted({kind_of(path)[0] for path in found})
    if len(kinds) != 1:
        what = f"has files of several kinds ({', '.join(kinds)}); name one of them" if kinds else f"has no file of a known kind: {KINDS}"
        if below and not found:
            what = f"has files of other splits than train alone ({below[0].relative_to(folder)}, ...); name one of them"
        raise UserError(f"[prepare] the folder {folder} of dataset {name} {what}")
    return found, config


def dangles(path):
    return path.is_symlink() and not path.exists()


def data_below(folder, or_dangling=False):
    """The files of data in a folder; with `or_dangling` links to such files that are not there, too."""
    places = [path for path in sorted(folder.rglob("*")) if not hub.is_hidden(path.relative_to(folder)) and path.name not in DESCRIPTIONS and is_data(path)]
    found = [path for path in places if path.is_file() or or_dangling and dangles(path)]
    listed = {place: files_of_state(place) for place in {path.parent for path in found}}
    return [path for path in found if listed[path.parent] is None or path.name in listed[path.parent]]


def files_of_state(folder):
    """The files that `datasets` lists for what it saved to a folder, beside which it keeps its own cache; None: it lists none."""
    if not is_file(folder / "state.json"):
        return None
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(f"[prepare] {folder / 'state.json'} chooses rows by a table of indices, which is not read; save the data set again by flatten_indices().save_to_disk")
    listed = state.get("_data_files")
    names = [item.get("filename") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else None
    absent = next((name for name in names or [] if not (isinstance(name, str) and is_file(folder / name))), None)
    if absent is not None:
        raise UserError(f"[prepare] {folder / 'state.json'} lists {absent}, which is not there; copy the data set whole")
    return names


def resolved(name, config=None):
    """A note that says which files a folder or a hub id stands for, or None where the name is a file's."""
    if is_file(name):
        return None
    found, config = files_of(data_folder(name), name, config)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return "; ".join([f"{name} is {found[0]}{more}{f' (its config {config})' if config else ''}", *hub.notes_of_shards(found)])
