#!/usr/bin/env python3
"""tools/fetch.py against a server of this process: whole, cut off and resumed, wrong checksum, nothing left behind."""

import dataclasses
import hashlib
import http.server
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fetch.py"
spec = importlib.util.spec_from_file_location("fetch", TOOL)
fetch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch)


def packed(files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


class Server(http.server.ThreadingHTTPServer):
    content = b""
    cut_after = None  # bytes after which the connection ends
    ranges = True
    asked = ()

    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/a.tar.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        begin = 0
        wanted = self.headers.get("Range")
        server.asked = (*server.asked, wanted)
        if wanted and server.ranges:
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[begin:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.cut_after is None else body[: server.cut_after])

    def log_message(self, *_):
        pass


class Fetch(unittest.TestCase):
    def setUp(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name) / "cache"
        self.files = {"one.bin": os.urandom(300_000), "two.bin": b"2" * 70}
        self.offer({f"set/{name}": content for name, content in self.files.items()} | {"set/other": b"x"})

    def offer(self, members):
        self.server.content = packed(members)
        self.archive = fetch.Archive(
            url=self.server.address(),
            bytes=len(self.server.content),
            sha256=hashlib.sha256(self.server.content).hexdigest(),
            folder="set",
            files={name: len(content) for name, content in self.files.items()},
        )

    def get(self):
        return fetch.fetch_archive(self.archive, self.cache)

    def left(self):
        return sorted(path.name for path in self.cache.iterdir() if not path.name.startswith("."))

    def test_whole(self):
        folder = self.get()
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, self.files)
        self.assertEqual(self.left(), ["set"])
        self.get()  # nothing to do
        self.assertEqual(len(self.server.asked), 1)

    def test_goes_on_where_it_stopped(self):
        self.server.cut_after = 100_000
        with self.assertRaisesRegex(fetch.Failure, "run it again"):
            self.get()
        self.assertEqual(self.left(), ["set.tar.gz.part"])
        self.server.cut_after = None
        folder = self.get()
        self.assertEqual((folder / "one.bin").read_bytes(), self.files["one.bin"])
        self.assertRegex(self.server.asked[-1], r"bytes=[1-9]\d*-")

    def test_a_server_without_ranges_starts_over(self):
        self.server.cut_after = 100_000
        with self.assertRaises(fetch.Failure):
            self.get()
        self.server.cut_after = None
        self.server.ranges = False
        self.assertEqual((self.get() / "two.bin").read_bytes(), self.files["two.bin"])

    def test_wrong_checksum_keeps_nothing(self):
        self.archive = dataclasses.replace(self.archive, sha256="0" * 64)
        with self.assertRaisesRegex(fetch.Failure, "expected 0000"):
            self.get()
        self.assertEqual(self.left(), [])

    def test_a_longer_file_keeps_nothing(self):
        self.server.content += b"more"
        with self.assertRaises(fetch.Failure):
            self.get()
        self.assertNotIn("set", self.left())

    def test_a_member_of_another_size_keeps_no_folder(self):
        self.offer({"set/one.bin": b"short", "set/two.bin": self.files["two.bin"]})
        with self.assertRaisesRegex(fetch.Failure, "one.bin"):
            self.get()
        self.assertNotIn("set", self.left())

    def test_a_link_is_not_unpacked(self):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w:gz") as tar:
            link = tarfile.TarInfo("set/one.bin")
            link.type = tarfile.SYMTYPE
            link.linkname = "/etc/passwd"
            tar.addfile(link)
        self.server.content = raw.getvalue()
        self.archive = dataclasses.replace(self.archive, bytes=len(self.server.content), sha256=hashlib.sha256(self.server.content).hexdigest())
        with self.assertRaisesRegex(fetch.Failure, "one.bin"):
            self.get()

    def run_tool(self, *arguments, **environment):
        return subprocess.run(
            [sys.executable, str(TOOL), *arguments],
            env=os.environ | {"TANDEM_CACHE": str(self.cache)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def assert_one_line(self, done, code, text):
        self.assertEqual(done.returncode, code, done.stderr)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("fetch: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertTrue(errors[0].startswith("error: [fetch] "), errors[0])
        self.assertIn(text, errors[0])

    def test_the_command_refuses_what_is_not_cifar10(self):
        self.server.content = b"x" * 1000
        self.assert_one_line(self.run_tool("dataset", "cifar10", "--url", self.server.address()), 1, "1000 of 170052171")

    def test_no_server(self):
        self.assert_one_line(self.run_tool("dataset", "cifar10", "--url", "http://127.0.0.1:9/a"), 1, "127.0.0.1:9")

    def test_ids_that_are_none(self):
        self.assert_one_line(self.run_tool("model", "a/b/c"), 2, "a/b/c")
        self.assert_one_line(self.run_tool("model", "a/b", "--url", "http://x"), 2, "--url")

    def test_the_hub_is_asked_at_hf_endpoint(self):
        try:
            import huggingface_hub  # noqa: F401
        except ImportError:
            self.assert_one_line(self.run_tool("model", "a/b"), 2, "huggingface_hub")
            return
        self.run_tool("model", "a/b", HF_ENDPOINT=self.server.address().rsplit("/", 1)[0], HF_HOME=str(self.cache / "hf"))
        self.assertTrue(self.server.asked, "the server was not asked")


if __name__ == "__main__":
    unittest.main()
