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
    (b"<!DOCTYPE", "is a web page, as a failed download leaves it; download it again"),
    (b"<!doctype", "is a web page, as a failed download leaves it; download it again"),
    (b"<html", "is a web page, as a failed download leaves it; download it again"),
    (b"PK\x03\x04", "is a zip archive; unpack it"),
)
OWN = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}


def other_content(path, packed=""):
    """The end of a sentence about the file, or None where its beginning says nothing against its ending."""
    with open(path, "rb") as file:
        first = file.read(64)
    for begins, means in BEGINNINGS:
        if first.startswith(begins):
            fits = OWN.get(begins) == path.suffix or (packed and begins in (b"\x1f\x8b", b"\xfd7zXZ"))
            return None if fits else means
    return None
