"""The common part of the tests of tools/prepare/: ./tandem prepare in this process, and a token file read by other means."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
DEMO = ROOT / "examples" / "demo"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE

sys.path.insert(0, str(ROOT / "tools"))
try:
    import numpy
    import safetensors.numpy
    from prepare import command
except ImportError as missing:
    print(f"skipped: {missing}; ./tandem setup installs requirements-prepare.txt with the first prepare or test")
    sys.exit(SKIPPED)


class Prepared:
    """The records of a token file."""

    def __init__(self, path):
        with safetensors.safe_open(path, "np") as file:
            self.metadata = file.metadata()
        tensors = safetensors.numpy.load_file(path)
        bits = numpy.unpackbits(tensors["mask"], bitorder="little")[: len(tensors["ids"])]
        ends = tensors["offsets"].tolist()
        self.ids = [tensors["ids"][begin:end].tolist() for begin, end in zip(ends, ends[1:])]
        self.masks = [bits[begin:end].tolist() for begin, end in zip(ends, ends[1:])]
        self.flags = tensors["flags"].tolist()


class PrepareTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name, content):
        path = self.folder / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(record) + "\n" for record in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def run_command(self, dataset, *flags, model=DEMO):
        """(exit code, standard output, standard error)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command.main(["--model_name", str(model), "--dataset_name", str(dataset), "--output", str(self.folder / "x.tokens"), *map(str, flags)])
        return code, out.getvalue(), err.getvalue()

    def prepare(self, dataset, *flags, model=DEMO):
        code, out, err = self.run_command(dataset, *flags, model=model)
        self.assertEqual((code, err), (0, ""), out)
        return Prepared(self.folder / "x.tokens")

    def refused(self, dataset, *flags, model=DEMO):
        """The error's line. Nothing may be left behind."""
        code, out, err = self.run_command(dataset, *flags, model=model)
        self.assertEqual((code, out), (2, ""), err)
        self.assertEqual([path.name for path in self.folder.iterdir() if "tokens" in path.name], [])
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("error: ["), err)
        return err
