#!/usr/bin/env python3
"""Data that asks for too much, or is damaged: one escaped line, exit code 1 or 2, and nothing left behind."""

import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import unittest
import unittest.mock

from support import DEMO, ROOT, PrepareTest

from prepare import bounds, errors, json_stream, leftovers

TEMPLATE = DEMO / "chat_template.jinja"
CHAT = [{"role": "user", "content": "Name the home of the oskel."}, {"role": "assistant", "content": "The willow trees."}]
GOOD = {"instruction": "a", "output": "b"}
MODULE = [sys.executable, "-I", str(ROOT / "tools/run_module.py"), "prepare"]


class Records(PrepareTest):
    """A record beyond a bound is one refused record, which --skip_refused leaves out."""

    def leaves_out(self, name, content, what, *flags):
        data = self.write(name, content)
        text = self.refused(data, *flags)
        self.assertIn("record 2", text)
        self.assertIn(what, text)
        found = self.prepare(data, "--skip_refused", *flags)
        self.assertEqual(len(found.ids), 2, name)
        (self.folder / "x.tokens").unlink()

    def test_depth(self):
        good, bad = json.dumps(GOOD), '{"instruction": "a", "output": ' + "[" * 2000 + "]" * 2000 + "}"
        shallow = '{"instruction": "a", "output": ' + '[{"a":' * 51 + "1" + "}]" * 51 + "}"
        for deep in (bad, shallow):
            self.leaves_out("a.jsonl", f"{good}\n{deep}\n{good}\n", "deep in one another")
            self.leaves_out("a.json", f"[{good},\n{deep},\n{good}]", "deep in one another")
            self.leaves_out("b.json", f"{good}\n{deep}\n{good}", "deep in one another")
        field = "[" * 2000 + "]" * 2000
        row = '"[{""role"": ""user"", ""content"": ""a""}, {""role"": ""assistant"", ""content"": ""b""}]"'
        self.leaves_out("a.csv", f'messages\n{row}\n"{field}"\n{row}\n', "deep in one another")
        self.prepare(self.write("t.csv", f'instruction,output\na,"{field}"\n'))  # a text is no nesting

    def test_brackets_in_texts_are_no_depth(self):
        self.prepare(self.write("a.jsonl", [{"instruction": "[{" * 5000 + '\\"', "output": "]" * 300}]))

    def test_digits(self):
        good, digits = json.dumps(GOOD), '{"instruction": "a", "output": ' + "1" * 5000 + "}"
        for name, text in (("a.jsonl", f"{good}\n{digits}\n{good}\n"), ("a.json", f"[{good}, {digits}, {good}]"), ("b.json", f"{good} {digits} {good}")):
            self.leaves_out(name, text, "more digits")
        self.assertIn("more digits", self.refused(self.write("c.json", "1" * 5000)))

    def test_a_member_that_stands_twice(self):
        good, bad = json.dumps(GOOD), '{"instruction": "a", "output": "b", "output": "c"}'
        for name, text in (("a.jsonl", f"{good}\n{bad}\n{good}\n"), ("a.json", f"[{good},\n{bad},\n{good}]"), ("b.json", f"{good}\n{bad}\n{good}")):
            self.leaves_out(name, text, '"output" stands twice')
        message = '{"role": "user", "role": "system", "content": "a"}'
        self.assertIn('"role" stands twice', self.refused(self.write("c.jsonl", '{"messages": [' + message + "]}\n")))

    def test_length(self):
        with unittest.mock.patch.object(bounds, "MOST_RECORD_CHARACTERS", 100):
            self.leaves_out("a.jsonl", [GOOD, {**GOOD, "instruction": "a" * 1000}, GOOD], "more than 100 characters")
            self.leaves_out("a.txt", f"a\n{'b' * 1000}\nc\n", "more than 100 characters")
            found = self.prepare(self.write("b.txt", f"a\n\n{'b' * 60}\n{'c' * 60}\nd\n\ne\n"), "--sample_by", "paragraph", "--skip_refused")
            self.assertEqual(len(found.ids), 2)
            (self.folder / "x.tokens").unlink()
            self.assertIn("more than 100 characters", self.refused(self.write("c.txt", "a" * 101), "--sample_by", "document"))
            self.assertIn("a row of more than 100", self.refused(self.write("a.csv", f'text,other\n"{"a" * 60}\n{"b" * 60}",c\n')))

    def test_texts_and_memory(self):
        data = self.write("a.jsonl", [{"text": "a"}, {"text": "b" * 2000}, {"text": "c"}])
        with unittest.mock.patch.object(bounds, "MOST_TEXT_CHARACTERS", 1000):
            self.leaves_out(data.name, data.read_text(), "its text has 2000 characters")
        with unittest.mock.patch.object(bounds, "BATCH_CHARACTERS", 1000), unittest.mock.patch.object(bounds, "memory_left", lambda: 1 << 16):
            code, out, err = self.run_command(data)
            self.assertEqual((code, out, err.count("\n")), (1, "", 1))
            self.assertIn("error: [memory] to tokenise a text of 2000 characters", err)

    def test_groups_give_the_same_ids(self):
        random.seed(1)
        data = self.write("a.jsonl", [{"messages": [*CHAT, {"role": "user", "content": "a" * random.randrange(50)}]} for _ in range(40)])
        text = TEMPLATE.read_text().replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
        for flags in ([], ["--loss_on", "all"], ["--chat_template", self.write("plain.jinja", text)]):
            flags = [*flags, *([] if "--chat_template" in flags else ["--chat_template", TEMPLATE])]
            whole = self.prepare(data, *flags)
            with unittest.mock.patch.object(bounds, "BATCH_CHARACTERS", 300):
                parts = self.prepare(data, *flags)
            self.assertEqual((parts.ids, parts.masks), (whole.ids, whole.masks))

    def test_wrong_types_are_refused_records(self):
        turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        good = {"conversations": turns}
        for bad in ([{"from": ["human"], "value": "a"}], [{"from": {}, "value": "a"}], [{"from": 5, "value": "a"}], 5, "x", [5], [{"from": "human", "value": {"a": 1}}], [[]]):
            self.leaves_out("a.jsonl", [good, {"conversations": bad}, good], "", "--chat_template", TEMPLATE)


class Packed(PrepareTest):
    def test_a_flipped_byte(self):
        lines = "".join(json.dumps({"text": f"line {number} of them"}) + "\n" for number in range(200)).encode()
        for name, packed in (("a.jsonl.gz", gzip.compress(lines)), ("a.jsonl.xz", lzma.compress(lines))):
            for at in range(4, len(packed), len(packed) // 40):
                (self.folder / name).write_bytes(packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :])
                code, _, err = self.run_command(self.folder / name)
                self.assertIn(code, (0, 2), err)
                self.assertEqual(err.count("\n"), code // 2, err)

    def test_bombs(self):
        with unittest.mock.patch.object(bounds, "FREE_UNPACKED_BYTES", 1 << 16):
            for ending, pack in ((".gz", gzip.compress), (".xz", lzma.compress)):
                for name, data in ((f"a.jsonl{ending}", b'{"text": "a"}\n' * 200_000), (f"b.txt{ending}", b"\n" * 2_000_000), (f"c.json{ending}", b" " * 2_000_000)):
                    path = self.folder / name
                    path.write_bytes(pack(data))
                    for small in (0, bounds.SMALL_FILE_BYTES):
                        with unittest.mock.patch.object(bounds, "SMALL_FILE_BYTES", small):
                            self.assertIn("unpacks to more than", self.refused(path))

    def test_a_dictionary(self):
        import pyarrow
        import pyarrow.parquet

        rows = pyarrow.array(["a" * 10_000] * 1000).dictionary_encode()
        table = pyarrow.table({"text": rows})
        pyarrow.parquet.write_table(table, self.folder / "a.parquet")
        with pyarrow.ipc.new_file(str(self.folder / "a.arrow"), table.schema) as file:
            file.write(table)
        with unittest.mock.patch.object(bounds, "FREE_UNPACKED_BYTES", 1 << 16):
            for name in ("a.parquet", "a.arrow"):
                self.assertIn("unpacks to more than", self.refused(self.folder / name))

    def test_columns(self):
        self.assertIn('two columns are named "text"', self.refused(self.write("a.csv", "text,a,text\nx,y,z\n")))


class Templates(PrepareTest):
    def rendered_by(self, template, *flags):
        return self.refused(self.write("m.jsonl", [{"messages": CHAT}]), "--chat_template", template, *flags)

    def test_time(self):
        with unittest.mock.patch.object(bounds, "TEMPLATE_S", 0.3):
            for template in ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ (9 ** 9) ** 99999999 }}"):
                self.assertIn("does not end within 0.3 s", self.rendered_by(template, "--skip_refused"))

    def test_memory(self):
        with unittest.mock.patch.object(bounds, "TEMPLATE_BYTES", 1 << 26):
            for template in ("{{ 'a' | center(10 ** 9) }}", "{{ 'a' * 10 ** 11 }}"):
                self.assertIn("takes more than 64 MB of memory", self.rendered_by(template))

    def test_size(self):
        self.assertIn("16777216 characters", self.rendered_by(self.write("t.jinja", " " * (bounds.MOST_TEMPLATE_CHARACTERS + 1))))


class Lines(PrepareTest):
    def test_names_and_members_are_escaped(self):
        for name in ("a\nb.jsonl", "a\x1b[31mb.jsonl", "a\u2028b\u202e.jsonl"):
            text = self.refused(self.write(name, [{"x\n\x1b[2J\ud800": 1}])).removesuffix("\n")
            self.assertTrue(text.isprintable(), text)
            data = self.write(name, [GOOD, {"instruction": "a"}])
            _, out, _ = self.run_command(data, "--skip_refused")
            self.assertEqual((out.count("\n"), out.replace("\n", "").isprintable()), (3, True))
            (self.folder / "x.tokens").unlink()

    def test_shares(self):
        data = self.write("a.jsonl", [GOOD] * 3)
        for shares in (("1e308", "1e308"), ("1e308", "1e-308"), ("1e-320", "1"), ("nan", "1"), ("inf", "1")):
            self.assertIn("give one above 0", self.refused(f"{data}:{shares[0]},{data}:{shares[1]}"))

    def test_long_lists_of_data_sets(self):
        data = self.write("a.jsonl", [{"text": "a"}])
        self.assertEqual(len(self.prepare(",".join([f"{data}:1"] * 300)).ids), 300)

    def test_what_nobody_expects_is_one_line_of_its_own(self):
        with unittest.mock.patch.object(json_stream, "lines_of", side_effect=RuntimeError("a\nb")):
            self.assertIn("RuntimeError: a; give a whole .jsonl file", self.refused(self.write("a.jsonl", [GOOD])))
        err = unittest.mock.Mock()
        with unittest.mock.patch.object(errors, "say", err):
            self.assertEqual(errors.exit_code_of(lambda: {}["a"]), 1)
        self.assertIn("KeyError", err.call_args[0][0])

    def test_a_tokenizer_that_is_none(self):
        model = self.folder / "model"
        model.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (model / name).write_bytes((DEMO / name).read_bytes())
        data = self.write("m.jsonl", [{"messages": CHAT}])
        config = json.loads((DEMO / "tokenizer_config.json").read_text())
        for name, content in (("tokenizer.json", "{}"), ("tokenizer.json", "[" * 3000), ("tokenizer_config.json", "["), ("tokenizer_config.json", "[" * 3000 + "]" * 3000), ("tokenizer_config.json", "[]"),
                              ("tokenizer_config.json", '{"a": ' + "1" * 5000 + "}"), ("special_tokens_map.json", "{"), ("tokenizer_config.json", json.dumps({**config, "chat_template": [{"name": 5}]}))):
            before = (model / name).read_bytes() if (model / name).exists() else None
            (model / name).write_text(content)
            (model / "chat_template.jinja").unlink(missing_ok=True)
            self.refused(data, model=model)
            (model / name).write_bytes(before) if before is not None else (model / name).unlink()


class Processes(PrepareTest):
    def command(self, data):
        return [*MODULE, "--model_name", str(DEMO), "--dataset_name", str(data), "--output", str(self.folder / "x.tokens")]

    def parts(self):
        return [path.name for path in self.folder.iterdir() if path.name.endswith(".part")]

    def started(self):
        """A run that is under way: its data is a file that takes long."""
        data = self.write("long.jsonl", "")
        with open(data, "w", encoding="utf-8") as file:
            file.write(json.dumps({"text": "the moon and a leaf " * 50}) * 1 + "\n")
            for _ in range(17):
                text = data.read_text() if file.flush() is None else ""
                file.write(text)
        run = subprocess.Popen(self.command(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not self.parts() and run.poll() is None:
            pass
        return run

    def test_a_signal_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            run = self.started()
            run.send_signal(number)
            out, err = run.communicate()
            self.assertEqual((run.returncode, out, err, self.parts()), (128 + number, "", "", []))

    def test_what_a_killed_run_leaves_goes_with_the_next(self):
        run = self.started()
        children = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True, check=True).stdout.split()
        run.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        run.communicate()
        self.assertEqual(len(self.parts()), 1)
        held = leftovers.create(self.folder / ".x.tokens.1.part")
        (self.folder / ".x.tokens.12x.part").write_text("")
        self.assertEqual(subprocess.run(self.command(self.write("a.jsonl", [GOOD])), check=False).returncode, 0)
        self.assertEqual(sorted(self.parts()), [".x.tokens.1.part", ".x.tokens.12x.part"])
        held.close()

    def test_an_abort_is_a_line(self):
        program = ("import sys; sys.path.insert(0, sys.argv[1]); from prepare.guard import guarded; import os, signal\n"
                   "def abort():\n    os.write(2, b'memory allocation\\x1b of 5 bytes failed\\nmore\\n'); os.abort()\n"
                   "work = {'abort': abort, 'kill': lambda: os.kill(os.getpid(), signal.SIGKILL), 'exit': lambda: os._exit(3)}[sys.argv[2]]\n"
                   "sys.exit(guarded(work, lambda: print('cleaned')))")
        for how, what, code in (("abort", "ended by SIGABRT: memory allocation\\x1b of 5 bytes failed", 1), ("kill", "ended by SIGKILL", 1), ("exit", "exit code 3", 3)):
            done = subprocess.run([sys.executable, "-c", program, str(ROOT / "tools"), how], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n"), done.stdout), (code, 1, "cleaned\n" if how != "exit" else ""), done.stderr)
            self.assertTrue(done.stderr.startswith("error: ["))
            self.assertIn(what, done.stderr)

    def test_little_memory_is_a_line(self):
        data = self.write("a.jsonl", [{"text": "the moon " * 1_000_000}])
        for kib in (150_000, 400_000, 700_000, 1_000_000):
            done = subprocess.run(["bash", "-c", f'ulimit -v {kib} && exec "$@"', "bash", *self.command(data)], capture_output=True, text=True)
            self.assertIn(done.returncode, (0, 1, 2), done.stderr)
            if done.returncode:
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertTrue(done.stderr.startswith("error: ["), done.stderr)
                self.assertEqual([path for path in self.folder.iterdir() if "tokens" in path.name], [])

    def test_flags(self):
        for flags, what in ((["--dataset_name", "x"], "[flags] the following arguments are required: --model_name, --output"), (["--oops\x1b"], "[flags]")):
            done = subprocess.run([*MODULE, *flags], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(what, done.stderr)


if __name__ == "__main__":
    unittest.main()
