"""The directory of a zip archive of torch.save, and where in the file the bytes of each entry lie.

Invariant: an entry that is returned is stored as it is, lies in the file, overlaps no other one, and its own header says what
the directory says: no two readers of zip archives can see different bytes.
"""

import os
import struct
import zipfile
from typing import NamedTuple

END = struct.Struct("<4s4H2LH")
LOCAL = struct.Struct("<4s5H3L2H")
ENCRYPTED, DESCRIPTOR_FOLLOWS = 1, 8
IN_64 = 0xFFFFFFFF  # the value stands in the zip64 field


class Entry(NamedTuple):
    begin: int
    size: int
    crc: int  # 0: none was written


def check_name(name, seen, damaged):
    if not name or name[0] == "/" or "\\" in name or "\0" in name or "/../" in f"/{name}/":
        raise damaged(f"its entry \"{name}\" leads out of the archive")
    if name in seen:
        raise damaged(f"its entry {name} occurs twice")


def data_of(file, info, limit, damaged):
    """From the local header of an entry to the data behind it."""
    name = info.orig_filename
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & ENCRYPTED:
        raise damaged(f"its entry {name} is packed or encrypted; torch.save stores entries as they are")
    if not 0 <= info.header_offset <= limit - LOCAL.size:
        raise damaged(f"its entry {name} lies outside of the file")
    head = os.pread(file.fileno(), LOCAL.size, info.header_offset)
    mark, _, flags, method, _, _, _, _, size, name_bytes, extra_bytes = LOCAL.unpack(head)
    own_name = os.pread(file.fileno(), name_bytes, info.header_offset + LOCAL.size)
    later = flags & DESCRIPTOR_FOLLOWS and size == 0
    if (mark != b"PK\3\4" or method != 0 or own_name != name.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
            or not (later or size in (IN_64, info.file_size))):
        raise damaged(f"its entry {name} and the directory disagree")
    begin = info.header_offset + LOCAL.size + name_bytes + extra_bytes
    if begin + info.file_size > limit:
        raise damaged(f"its entry {name} lies outside of the file")
    return Entry(begin, info.file_size, info.CRC)


def read_directory(file, damaged):
    """name -> Entry; damaged(reason) makes the error."""
    size = os.fstat(file.fileno()).st_size
    end = os.pread(file.fileno(), END.size, max(0, size - END.size))
    if len(end) < END.size:
        raise damaged("it is cut short")
    if end[:4] != b"PK\5\6" or END.unpack(end)[-1] != 0:
        raise damaged("it does not end with the archive's directory (cut short, or more follows)")
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:  # the library's own, and those of struct and of decoding names
        raise damaged(f"its directory is damaged ({error})") from None
    entries, places = {}, []
    for info in archive.infolist():
        check_name(info.orig_filename, entries, damaged)
        entry = entries[info.orig_filename] = data_of(file, info, archive.start_dir, damaged)
        places.append((info.header_offset, entry.begin + entry.size))
    places.sort()
    if places and places[0][0] != 0:
        raise damaged("its directory does not lie where it says, or more stands before its first entry")
    if any(after[0] < before[1] for before, after in zip(places, places[1:])):
        raise damaged("its entries overlap")
    return entries
