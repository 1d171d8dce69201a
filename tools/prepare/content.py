"""Names the kind of a file that is of the wrong kind, by its first bytes, as actors/storage/known_content.cpp does."""

BEGINNINGS = (
    (b"version https://git-lfs", "is a pointer of Git LFS in the place of the file; fetch it: git lfs pull"),
    (b"\xff\xfe", "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\x28\xb5\x2f\xfd", "is packed by zstd; unpack it: zstd -d FILE"),
    (b"\x1f\x8b", "is packed by gzip; give it the ending .gz"),
    (b"\xfd7zXZ", "is packed by xz; give it the ending .xz"),
    (b"PAR1", "is a parquet file; give it that ending"),
    (b"ARROW1", "is an Arrow file; give it that ending"),
    (b"PK\x03\x04", "is a zip archive; unpack it"),
)
# A server's answers in the place of a file, in small letters; blanks may stand before them.
PAGE = "is a web page, as a failed download leaves it; download it again"
FAULT = "is a server's error message, as a failed download leaves it; download it again"
XML = "is XML, as a server answers a failed download; download it again"
ANSWERS = ((b"<!doctype", PAGE), (b"<html", PAGE), (b"<head", PAGE), (b"<?xml", XML), (b"<error", FAULT), (b'{"error"', FAULT))
# The endings of files that may well begin so.
OWN = {b"PAR1": (".parquet",), b"ARROW1": (".arrow",), b"<?xml": (".txt",)}


def other_content(path, packed="", has_records=False):
    """The end of a sentence about the file, or None where its beginning says nothing against its ending. A record may well
    begin with an "error"."""
    with open(path, "rb") as file:
        first = file.read(64)
    plain = first.lstrip().lower()
    found = [pair for pair in BEGINNINGS if first.startswith(pair[0])] + [pair for pair in ANSWERS if plain.startswith(pair[0])]
    if not found:
        return None
    begins, means = found[0]
    fits = path.suffix in OWN.get(begins, ()) or packed and begins in (b"\x1f\x8b", b"\xfd7zXZ") or has_records and begins.startswith(b"{")
    return None if fits else means
