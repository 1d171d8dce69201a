#!/usr/bin/env python3
"""Downloads a model or a data set into the usual cache, whole or not at all.

  fetch.py dataset cifar10          CIFAR-10's binary archive from its own page, into $TANDEM_CACHE (~/.cache/tandem)
  fetch.py dataset cifar10 --from DIR    the same files out of the Python archive (data_batch_1, ...) that lies in DIR
  fetch.py model Qwen/Qwen3-0.6B    a repository of the Hugging Face hub (or of HF_ENDPOINT), into the hub's cache
  fetch.py dataset ORG/NAME         the same for a data set

A download that was cut off goes on where it stopped. Exit codes: 0 done, 1 network or disk, 2 wrong input.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import http.client
import io
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from prepare.errors import UserError, escaped  # noqa: E402

CHUNK_BYTES = 1 << 20
PATTERNS = {  # of what is taken from the hub: what the engine reads, or ./tandem prepare
    "model": ["*.json", "*.safetensors", "*.txt", "*.jinja"],
    "dataset": ["*.json", "*.jsonl", "*.csv", "*.tsv", "*.txt", "*.parquet", "*.arrow", "*.gz", "*.xz", "*.md"],
}
TIMEOUT_S = 60


class Failure(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Archive:
    url: str
    bytes: int
    sha256: str
    folder: str  # in the archive, and in the cache
    files: dict  # name -> bytes; nothing else is unpacked


CIFAR10 = Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    bytes=170_052_171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    folder="cifar-10-batches-bin",
    files={**{f"data_batch_{i}.bin": 30_730_000 for i in range(1, 6)}, "test_batch.bin": 30_730_000},
)


def cache_folder():
    if os.environ.get("TANDEM_CACHE"):
        return Path(os.environ["TANDEM_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tandem"


def say(text):
    print(f"fetch: {text}", file=sys.stderr, flush=True)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def download(archive, part):
    """Appends to `part` what of the archive is missing there."""
    have = part.stat().st_size if part.exists() else 0
    if have > archive.bytes:
        part.unlink()
        have = 0
    if have == archive.bytes:
        return
    request = urllib.request.Request(archive.url, headers={"User-Agent": "tandem"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        with open(part, "ab" if goes_on else "wb") as out:
            size = have if goes_on else 0
            if goes_on:
                say(f"going on after {have} of {archive.bytes} bytes")
            while block := answer.read(CHUNK_BYTES):
                size += len(block)
                if size > archive.bytes:
                    break  # another file; the check below says so
                out.write(block)


def check(archive, part):
    size = part.stat().st_size
    if size < archive.bytes:
        raise Failure(f"[fetch] {archive.url} ended after {size} of {archive.bytes} bytes; run it again to go on")
    digest = sha256_of(part)
    if digest != archive.sha256:
        part.unlink()
        raise Failure(f"[fetch] {archive.url} has sha256 {digest}, expected {archive.sha256}; nothing was kept, try again or use another network")


@contextlib.contextmanager
def appearing(folder):
    """A folder to write into, which gets the name `folder` when all is in it, or goes."""
    temporary = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write(source, path):
    with open(path, "wb") as out:
        shutil.copyfileobj(source, out)
        out.flush()
        os.fsync(out.fileno())


def unpack(archive, packed, folder):
    """The archive's files, and only these, into `folder`, which appears when all are there."""
    with appearing(folder) as temporary, tarfile.open(packed, "r:gz") as tar:
        for name, size in archive.files.items():
            try:
                member = tar.getmember(f"{archive.folder}/{name}")
            except KeyError:
                raise Failure(f"[fetch] {archive.url} lacks {name}; it is not the archive it was") from None
            if not member.isreg() or member.size != size:
                raise Failure(f"[fetch] {name} in {archive.url} has {member.size} bytes, expected {size}; it is not the archive it was")
            with tar.extractfile(member) as source:
                write(source, temporary / name)


def convert_batches(archive, source, cache):
    """The folder with the archive's files, made of the pickled batches in `source`."""
    from convert.cifar import read_batch

    folder = cache / archive.folder
    if folder.exists():
        raise Failure(f"[fetch] {folder} is there already; remove it first, or use it", 2)
    inside = source / "cifar-10-batches-py"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with appearing(folder) as temporary:
            for name in archive.files:
                batch = (inside if inside.is_dir() else source) / name.removesuffix(".bin")
                if not batch.is_file():
                    raise Failure(f"[fetch] {source} holds no {batch.name} of the Python archive; name its folder", 2)
                write(io.BytesIO(read_batch(batch)), temporary / name)
    except UserError as error:
        raise Failure(str(error), 2) from None
    return folder


def fetch_archive(archive, cache):
    """The folder with the archive's files. Safe to run twice at the same time."""
    folder = cache / archive.folder
    cache.mkdir(parents=True, exist_ok=True)
    lock_path = cache / f".{archive.folder}.lock"
    with open(os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as lock:  # no other user may hold it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            say("already there")
            return folder
        part = cache / (archive.folder + ".tar.gz.part")
        say(f"downloading {archive.url} ({archive.bytes / 1e6:.0f} MB)")
        try:
            download(archive, part)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise Failure(f"[fetch] {archive.url}: {reason}; run it again to go on where it stopped") from None
        check(archive, part)
        unpack(archive, part, folder)
        part.unlink()
    return folder


def fetch_from_hub(kind, name):
    name, _, revision = name.partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Failure(f"[fetch] {name} comes from the Hugging Face hub and huggingface_hub is not in .venv; run .venv/bin/python -m pip install huggingface_hub", 2) from None
    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision or None, allow_patterns=PATTERNS[kind]))
    except Exception as error:  # its errors come from several libraries
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Failure(f"[fetch] {kind} {name}: {first.rstrip('.')}; check the id and HF_ENDPOINT") from None


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tandem fetch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["model", "dataset"])
    parser.add_argument("id", help="cifar10, or ORG/NAME on the hub, with @REVISION behind it maybe")
    parser.add_argument("--from", dest="source", type=Path, help="cifar10: a folder with the Python archive's batches, instead of a download")
    parser.add_argument("--url", help="another address of the same archive")
    args = parser.parse_args(arguments)
    try:
        if args.kind == "dataset" and args.id == "cifar10" and args.source:
            print(convert_batches(CIFAR10, args.source, cache_folder()))
        elif args.kind == "dataset" and args.id == "cifar10":
            archive = dataclasses.replace(CIFAR10, url=args.url or CIFAR10.url)
            print(fetch_archive(archive, cache_folder()))
        elif args.url or args.source:
            raise Failure(f"[fetch] --{'url' if args.url else 'from'} goes with cifar10 only, not with {args.id}; HF_ENDPOINT is the hub's address", 2)
        elif args.id.partition("@")[0].count("/") > 1 or not args.id.strip("/"):
            raise Failure(f"[fetch] \"{args.id}\" is no id; use cifar10, or ORG/NAME on the hub", 2)
        else:
            print(fetch_from_hub(args.kind, args.id))
    except Failure as failure:
        print(escaped(f"error: {failure}"), file=sys.stderr)
        return failure.code
    except OSError as error:
        print(escaped(f"error: [fetch] {error.strerror or error}: {error.filename}; free space or choose another TANDEM_CACHE"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
