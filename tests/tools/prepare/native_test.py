#!/usr/bin/env python3
"""What ./tandem prepare writes beside what the programs read themselves: the same ids, masks and counts.

usage: native_test.py BIN, the folder with the program `tandem`
"""

import json
import subprocess
import sys
import unittest

from support import DEMO, SHARED, PrepareTest

PROGRAM = sys.argv.pop(1) + "/tandem"


class Native(PrepareTest):
    def inspect(self, dataset, *flags, model=DEMO):
        done = subprocess.run([PROGRAM, "inspect", "--model_name", model, "--dataset_name", dataset, *map(str, flags)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stderr.splitlines():
            self.assertTrue(line.startswith(f"note: {dataset}: "), line)
        return done.stdout

    def records(self, *arguments, **options):
        return [json.loads(line) for line in self.inspect(*arguments, "--json", **options).splitlines()]

    def same(self, data, model, *flags):
        natively = self.records(data, *flags, model=model)
        self.prepare(data, *flags, model=model)
        self.assertEqual(self.records(self.folder / "x.tokens", "--verify", model=model), natively)
        self.assertGreater(len(natively), 100)

    def test_instructions_of_the_demo(self):
        for flags in ([], ["--loss_on", "all"], ["--append_eos", "off", "--max_length", 24]):
            self.same(DEMO / "instructions.json", DEMO, *flags)

    def test_alpaca(self):
        data, model = SHARED / "data" / "alpaca" / "alpaca_small.json", SHARED / "models" / "qwen3_tiny"
        if not data.is_file():
            self.skipTest(f"{data} is not there")
        self.same(data, model, "--max_length", 64)

    def test_counts_are_those_that_training_makes(self):
        data, made = DEMO / "instructions.json", self.folder / "x.tokens"
        for flags, made_flags in (([], []), (["--max_length", 16], []), (["--max_length", 16], ["--max_length", 16])):
            natively = self.inspect(data, "-n", 0, *flags).replace(str(data), "DATA").splitlines()
            self.prepare(data, *made_flags)
            prepared = self.inspect(made, "-n", 0, *flags).replace(str(made), "DATA").splitlines()
            self.assertEqual(natively[0].split(";")[0], prepared[0].split(";")[0])
            self.assertEqual(natively[1:], prepared[1:])
        self.assertIn("refused  training ends with: [dataset] DATA: ", natively[-1])

    def test_records_are_shown_with_their_mask(self):
        data = self.write("a.jsonl", [{"instruction": "Say it.\x1b[31m", "output": "It.\nIt."}, {"instruction": "x", "output": "y"}])
        text = self.inspect(data, "-n", 1)
        self.assertIn("### Response:\n>>It.\nIt.<|im_end|><<\n", text)
        self.assertIn("Say it.\\x1b[31m\n", text)
        self.assertNotIn("record 2", text)
        self.assertEqual(self.records(data, "-n", 1), self.records(data)[:1])
        self.assertEqual(self.records(data)[1]["text"], "### Instruction:\nx\n\n### Response:\ny<|im_end|>")

    def test_members_that_are_not_used_are_said(self):
        data = self.write("a.jsonl", [{"instruction": "Say it.", "output": "It.", "oddity": 1, "rejected": "No."}])
        said = "members that are not used: oddity, rejected\n"
        self.assertIn(f"note     {said}", self.inspect(data))
        done = subprocess.run([PROGRAM, "inspect", "--model_name", DEMO, "--dataset_name", data, "--json"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr, len(done.stdout.splitlines())), (0, f"note: {data}: {said}", 1))

    def test_another_tokenizer_is_refused(self):
        self.prepare(DEMO / "instructions.json")
        other = self.folder / "other"
        other.mkdir()
        tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        (other / "tokenizer_config.json").write_bytes((DEMO / "tokenizer_config.json").read_bytes())
        done = subprocess.run([PROGRAM, "inspect", "--model_name", other, "--dataset_name", self.folder / "x.tokens"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("was made with another tokenizer", done.stderr)


if __name__ == "__main__":
    unittest.main()
