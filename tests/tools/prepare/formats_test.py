#!/usr/bin/env python3
"""tools/prepare/ on small files of each kind, with the demo's tokenizer and template."""

import gzip
import json
import random
import struct
import tempfile
import unittest
from pathlib import Path

import numpy
from support import DEMO, PrepareTest

from prepare import errors, files, mixture, token_file
from prepare.tokenizer import Tokenizer

TEMPLATE = DEMO / "chat_template.jinja"
TOKENIZER = Tokenizer(DEMO)
CHAT = [{"role": "user", "content": "Name the home of the oskel."}, {"role": "assistant", "content": "The willow trees."}]
END = TOKENIZER.id_of("eos_token")


def ids(text):
    return TOKENIZER.backend.encode(text, add_special_tokens=False).ids


def learnt_text(found, record=0):
    return TOKENIZER.backend.decode([t for t, bit in zip(found.ids[record], found.masks[record]) if bit], skip_special_tokens=False)


class Formats(PrepareTest):
    def test_alpaca_learns_the_answer_and_its_end(self):
        asked = "### Instruction:\nSay it.\n\n### Input:\nmoon\n\n### Response:\n"
        found = self.prepare(self.write("a.json", [{"instruction": "Say it.", "input": "moon", "output": "Moon."}]))
        self.assertEqual(found.ids, [ids(asked + "Moon.") + [END]])
        self.assertEqual(learnt_text(found), "Moon.<|im_end|>")

    def test_an_absent_an_empty_and_a_null_input_are_the_same(self):
        records = [{"instruction": "Say it.", "output": "It.", **more} for more in ({}, {"input": ""}, {"input": None}, {"input": " \n"})]
        found = self.prepare(self.write("a.jsonl", records))
        self.assertEqual(found.ids, [ids("### Instruction:\nSay it.\n\n### Response:\nIt.") + [END]] * 4)

    def test_a_text_that_is_json_stays_a_text(self):
        expected = self.prepare(self.write("a.jsonl", [{"instruction": "[1, 2]", "output": '{"a": 1}'}])).ids
        (self.folder / "a.csv").write_text('instruction,output\n"[1, 2]","{""a"": 1}"\n', encoding="utf-8")
        self.assertEqual(self.prepare(self.folder / "a.csv").ids, expected)
        (self.folder / "a.tsv").write_text('instruction\toutput\n"[1, 2]"\t"{""a"": 1}"\n', encoding="utf-8")
        self.assertEqual(self.prepare(self.folder / "a.tsv").ids, expected)
        found = self.prepare(self.write("p.jsonl", [{"prompt": '[{"a": 1}]', "completion": '[{"b": 2}]'}]))
        self.assertEqual(found.ids, [ids('[{"a": 1}][{"b": 2}]') + [END]])
        (self.folder / "x.tokens").unlink()
        self.assertIn("both lists of messages", self.refused(self.write("p.jsonl", [{"prompt": json.dumps(CHAT[:1]), "completion": "Yes."}])))

    def test_a_verdict_of_a_table_is_one(self):
        (self.folder / "a.csv").write_text("instruction,output,label\na,b,False\n", encoding="utf-8")
        self.assertIn('"label" is false', self.refused(self.folder / "a.csv"))

    def test_another_delimiter_is_named(self):
        """As spreadsheets of some countries save tables; a field's own text may have any of them."""
        for name, text, said in (("a.csv", "\ufeffinstruction;output\r\na;b\r\n", "have semicolons"), ("a.csv", '"instruction";"output"\n"a";"b"\n', "have semicolons"),
                                 ("a.csv", "instruction\toutput\na\tb\n", "have tabs between them.*save it with commas, or give it the ending .tsv"), ("a.csv", "instruction|output\na|b\n", "have vertical bars"),
                                 ("a.tsv", "instruction,output\na,b\n", "have commas between them; a .tsv needs tabs; save it with tabs, or give it the ending .csv"),
                                 ("a.csv", "instruction;output\n", "save it with commas$")):
            self.assertRegex(self.refused(self.write(name, text)), f"{name}:1: .*{said}")
        for text in ("text\na;b|c\n", "text,n;m\na,b\n"):
            self.assertEqual(len(self.prepare(self.write("a.csv", text)).ids), 1)

    def test_null_members_tell_no_form(self):
        """As a table's rows have them, whose columns are those of all records."""
        record = {"instruction": "Say it.", "output": "It."}
        found = self.prepare(self.write("a.jsonl", [{"messages": None, **record, "input_ids": None}]))
        self.assertEqual(found.ids, self.prepare(self.write("b.jsonl", [record])).ids)

    def test_empty_answers_are_counted(self):
        records = [{"messages": [CHAT[0], {**CHAT[1], "content": ""}]}, {"messages": CHAT}, {"messages": [CHAT[0], {**CHAT[1], "content": "", "weight": 0}, *CHAT]}]
        for data, flags in ((records, ("--chat_template", TEMPLATE)), ([{"instruction": "Say it.", "output": " "}, {"instruction": "Go.", "output": "Gone."}], ())):
            out = self.run_command(self.write("e.json", data), *flags)[1]
            self.assertIn("records with an empty answer, which teaches the model to end at once: 1", out)
            (self.folder / "x.tokens").unlink()

    def test_an_array_is_told_by_its_first_character(self):
        records = [{"instruction": "Say it.", "output": "It."}, {"instruction": "Go.", "output": "Gone."}]
        expected = self.prepare(self.write("b.json", records)).ids
        for text in (json.dumps(records), "\n" + json.dumps(records, indent=1) + "\n"):
            self.assertEqual(self.prepare(self.write("a.jsonl", text)).ids, expected)
        (self.folder / "x.tokens").unlink()
        self.assertIn("a.jsonl:3: record 2", self.refused(self.write("a.jsonl", '[{"instruction": "a", "output": "b"},\n\n5]')))

    def test_loss_on_and_append_eos(self):
        data = self.write("a.json", [{"instruction": "Say it.", "output": "It."}])
        self.assertEqual(set(self.prepare(data, "--loss_on", "all").masks[0]), {1})
        self.assertEqual(self.prepare(data, "--loss_on", "assistant").masks, self.prepare(data).masks)
        # The demo's tokenizer ends a text itself.
        self.assertEqual(self.prepare(data, "--append_eos", "off").ids, self.prepare(data).ids)

    def test_messages_of_text_files_and_tables_are_one_chat(self):
        import pyarrow
        import pyarrow.parquet

        expected = self.prepare(self.write("m.jsonl", [{"messages": CHAT}]), "--chat_template", TEMPLATE)
        self.assertEqual(learnt_text(expected), "The willow trees.<|im_end|>")
        table = pyarrow.Table.from_pylist([{"messages": CHAT, "note": None}])
        pyarrow.parquet.write_table(table, self.folder / "m.parquet")
        with pyarrow.ipc.new_stream(str(self.folder / "stream.arrow"), table.schema) as stream:
            stream.write(table)
        with pyarrow.ipc.new_file(str(self.folder / "file.arrow"), table.schema) as file:
            file.write(table)
        self.write("m.json", [{"messages": CHAT}])
        self.write("m.csv", 'messages,note\n"' + json.dumps(CHAT).replace('"', '""') + '",x\n')
        (self.folder / "m.jsonl.gz").write_bytes(gzip.compress((self.folder / "m.jsonl").read_bytes()))
        for name in ("m.parquet", "stream.arrow", "file.arrow", "m.json", "m.csv", "m.jsonl.gz"):
            found = self.prepare(self.folder / name, "--chat_template", TEMPLATE)
            self.assertEqual((found.ids, found.masks), (expected.ids, expected.masks), name)

    def test_tools_reach_the_template(self):
        record = {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "moon"}}]}
        found = self.prepare(self.write("m.jsonl", [record]), "--chat_template", TEMPLATE)
        self.assertIn('"name": "moon"', TOKENIZER.backend.decode(found.ids[0], skip_special_tokens=False))

    def test_sharegpt_with_a_system_text_is_the_same_chat(self):
        turns = [{"from": "human", "value": CHAT[0]["content"]}, {"from": "gpt", "value": CHAT[1]["content"]}]
        found = self.prepare(self.write("s.json", [{"conversations": turns, "system": "Be brief."}]), "--chat_template", TEMPLATE)
        expected = self.prepare(self.write("m.json", [{"messages": [{"role": "system", "content": "Be brief."}, *CHAT]}]), "--chat_template", TEMPLATE)
        self.assertEqual((found.ids, found.masks), (expected.ids, expected.masks))

    def test_prompt_and_completion_as_texts_and_as_messages(self):
        found = self.prepare(self.write("p.jsonl", [{"prompt": "moon, leaf ->", "completion": " leaf, moon"}]))
        self.assertEqual(found.ids, [ids("moon, leaf -> leaf, moon") + [END]])
        self.assertEqual(learnt_text(found), " leaf, moon<|im_end|>")
        found = self.prepare(self.write("p.jsonl", [{"prompt": CHAT[:1], "completion": CHAT[1:]}]), "--chat_template", TEMPLATE)
        self.assertEqual(learnt_text(found), "The willow trees.<|im_end|>\n")
        found = self.prepare(self.write("p.jsonl", [{"prompt": [{**CHAT[0], "train": False}], "completion": CHAT[1:]}]), "--chat_template", TEMPLATE)
        self.assertEqual(learnt_text(found), "The willow trees.<|im_end|>\n")  # a prompt is not learnt in any case

    def test_the_member_at_fault_is_named(self):
        for record, expected in (({"prompt": "a", "completion": []}, '"prompt" is a text and "completion" is a list'), ({"prompt": [1], "completion": CHAT[1:]}, 'message 1 of "prompt" is a number'),
                                 ({"messages": [{"role": "user", "content": [{"a": 1}]}, CHAT[1]]}, "a part of the content of message 1 has no"),
                                 ({"messages": [{**CHAT[0], "function_call": 5}, CHAT[1]]}, 'a call of "function_call" of message 1'),
                                 ({"messages": CHAT, "tools": [{"a": 1}], "functions": [{"a": 1}]}, '"tools" and "functions"; keep one'),
                                 ({"prompt": CHAT[:1], "completion": [{**CHAT[1], "train": False}]}, 'has a "weight", "loss" or "train" of 0'),
                                 ({"instruction": "Say it.", "output": "It.", "history": False}, '"history" is true or false')):
            self.assertIn(expected, self.refused(self.write("p.jsonl", [record])))

    def test_completion_of_messages_is_the_last_answer(self):
        data = self.write("m.json", [{"messages": CHAT + [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "No more."}]}])
        self.assertEqual(learnt_text(self.prepare(data, "--chat_template", TEMPLATE)), "The willow trees.<|im_end|>No more.<|im_end|>")
        self.assertEqual(learnt_text(self.prepare(data, "--chat_template", TEMPLATE, "--loss_on", "completion")), "No more.<|im_end|>")

    def test_loss_false_and_weight_0_leave_a_message_out(self):
        for member in ({"loss": False}, {"weight": 0}):
            data = self.write("m.json", [{"messages": [CHAT[0], {**CHAT[1], **member}, CHAT[0], {"role": "assistant", "content": "Trees."}]}])
            self.assertEqual(learnt_text(self.prepare(data, "--chat_template", TEMPLATE)), "Trees.<|im_end|>")

    def test_weights_choose_by_prefixes_too(self):
        text = TEMPLATE.read_text()
        for mark in ("{%- generation %}", "{%- endgeneration %}"):
            text = text.replace(mark, "")
        template = self.write("plain.jinja", text)
        data = self.write("m.json", [{"messages": [CHAT[0], {**CHAT[1], "weight": 0}, CHAT[0], {"role": "assistant", "content": "Trees."}]}])
        self.assertEqual(learnt_text(self.prepare(data, "--chat_template", template)), "Trees.<|im_end|>\n")

    def test_text_by_line_paragraph_and_document(self):
        data = self.write("t.txt", "The moon.\nA leaf.\n\n\nA bus.\n")
        for sample_by, texts in (("line", ["The moon.", "A leaf.", "A bus."]), ("paragraph", ["The moon.\nA leaf.", "A bus."]),
                                 ("document", ["The moon.\nA leaf.\n\n\nA bus.\n"])):
            found = self.prepare(data, "--sample_by", sample_by)
            self.assertEqual(found.ids, [ids(text) + [END] for text in texts])
            self.assertEqual(set(sum(found.masks, [])), {1})

    def test_token_ids_with_labels_a_mask_or_nothing(self):
        found = self.prepare(self.write("i.jsonl", [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [5, 6, 7], "mask": [0, 0, 1]}, {"input_ids": [8]}]))
        self.assertEqual(found.ids, [[5, 6, 7], [5, 6, 7], [8]])
        self.assertEqual(found.masks, [[0, 1, 1], [0, 0, 1], [1]])

    def test_megatrons_pair(self):
        sequences = [[5, 6, 7], [8], [9, 10]]
        for code, dtype in ((8, "<u2"), (4, "<i4"), (5, "<i8")):
            data = [numpy.array(sequence, dtype) for sequence in sequences]
            sizes = [len(sequence) for sequence in sequences]
            offsets = [sum(sizes[:n]) * data[0].itemsize for n in range(3)]
            (self.folder / "x.bin").write_bytes(b"".join(array.tobytes() for array in data))
            (self.folder / "x.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 4) + struct.pack("<3i3q4q", *sizes, *offsets, 0, 1, 2, 3))
            for name in ("x.bin", "x.idx"):
                self.assertEqual(self.prepare(self.folder / name).ids, sequences)
        (self.folder / "x.tokens").unlink()
        (self.folder / "x.bin").write_bytes(b"12")
        self.assertIn("sequence 1", self.refused(self.folder / "x.bin"))

    def test_a_cut_is_counted_and_lost_answers_are(self):
        data = self.write("a.jsonl", [{"instruction": "Say it. " * 20, "output": "It."}, {"instruction": "x", "output": "It. " * 40}, {"instruction": "x", "output": "y"}])
        found = self.prepare(data, "--max_length", 64)
        self.assertEqual([len(record) for record in found.ids][:2], [64, 64])
        self.assertEqual(found.flags, [token_file.HAS_PROMPT | token_file.CUT | token_file.LOST_BY_CUT, token_file.HAS_PROMPT | token_file.CUT, token_file.HAS_PROMPT])
        self.assertEqual([found.metadata[name] for name in ("records", "cut", "nothing", "longest", "prompts")], ["3", "2", "1", "64", "3"])
        # Without an end token of its own a cut text ends as the tokenizer ends it.
        self.assertEqual(self.prepare(data, "--max_length", 64, "--append_eos", "off").ids[1][-1], END)

    def test_many_batches_make_one_file(self):
        records = [{"input_ids": [n % 700] * (1 + n * 7 % 30), "mask": [n % 2] * (1 + n * 7 % 30)} for n in range(1500)]
        found = self.prepare(self.write("i.jsonl", records))
        self.assertEqual(found.ids, [record["input_ids"] for record in records])
        self.assertEqual(found.masks, [record["mask"] for record in records])


class Memory(PrepareTest):
    def test_is_that_of_a_batch_whatever_the_files_size(self):
        import tracemalloc

        peaks = []
        for batches in (3, 9):
            data = self.write("i.jsonl", [{"input_ids": [5] * 60}] * (512 * batches))
            tracemalloc.start()
            self.assertEqual(self.run_command(data)[0], 0)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        self.assertLess(peaks[1], 1.3 * peaks[0])


class Json(PrepareTest):
    def test_an_array_is_read_in_pieces_of_any_size(self):
        from prepare import json_stream

        random.seed(1)
        records = [{"text": "".join(random.choices('a"\\\n\u00e9\u4f60 ,]}', k=random.randrange(40))), "n": random.uniform(-1e9, 1e9), "m": [True, None, 12345678]} for _ in range(200)]
        whole = json_stream.READ_CHARACTERS
        try:
            for json_stream.READ_CHARACTERS in (1, 7, 100, whole):
                for text in (json.dumps(records, indent=1), json.dumps(records, ensure_ascii=False), "\n".join(map(json.dumps, records))):
                    with open(self.write("a.json", text), encoding="utf-8") as file:
                        self.assertEqual([record for _, record in json_stream.values(file, "a.json")], records)
        finally:
            json_stream.READ_CHARACTERS = whole

    def test_lines_are_named(self):
        for text, place in (('[\n{"text": "a"},\n{"text": }]', "a.json:3"), ('[\n{"text": "a"}\n\n', "a.json:4"), ('[{"text": "a"}] x', "a.json:1"), ('[{"text": "a"}; {}]', "a.json:1"),
                            ('[{"text": "a"},\n{"text": 1}]', "a.json:2: record 2")):
            self.assertIn(place, self.refused(self.write("a.json", text)))


class Refusals(PrepareTest):
    def test_a_record_that_does_not_fit_is_named(self):
        good = {"instruction": "a", "output": "b"}
        for record, what in (({"instruction": "a"}, '"output" is absent'), ({"instruction": 5, "output": "b"}, '"instruction" is a number'), ([], "it is a list"),
                             ({"instruction": "a", "output": "\ud800"}, "half a surrogate pair, U+D800")):
            text = self.refused(self.write("a.jsonl", [good, record]))
            self.assertIn("a.jsonl:2: record 2: ", text)
            self.assertIn(what, text)

    def test_messages_that_do_not_fit(self):
        user = CHAT[0]
        for messages, what in (([], '"messages" is empty'), ("x", '"messages" is a text'), ([{"content": "x"}], "message 1 has no role"), ([user, {"role": "assistant"}], "message 2 (assistant) has no content"),
                               ([{**user, "weight": 1}], "only the assistant is learnt"), ([user, {**CHAT[1], "weight": 0.5}], '"weight" of message 2 is 0.5')):
            self.assertIn(what, self.refused(self.write("m.jsonl", [{"messages": messages}]), "--chat_template", TEMPLATE))

    def test_token_ids_that_do_not_fit(self):
        for record, what in (({"input_ids": []}, "is empty"), ({"input_ids": [768]}, "reach from 768 to 768"), ({"input_ids": [-1]}, "from -1"), ({"input_ids": [1.5]}, "no list of whole numbers"),
                             ({"input_ids": [2**70]}, "no list of whole numbers"), ({"input_ids": [1, 2], "labels": [1]}, "has 1 entries"), ({"input_ids": [1, 2], "labels": [1, 3]}, '"labels"[1] is 3'),
                             ({"input_ids": [1], "mask": [2]}, "other values than 0 and 1"), ({"input_ids": [[1]]}, "no list of whole numbers")):
            self.assertIn(what, self.refused(self.write("i.jsonl", [record])))

    def bare_of_end(self, folder):
        """A tokenizer without a token that ends texts."""
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<|endoftext|>"]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return folder

    def test_refused_records_can_be_left_out_and_are_counted(self):
        data = self.write("a.jsonl", [{"instruction": "a", "output": "b"}, {"instruction": "a"}, {"instruction": "c", "output": "d"}])
        code, out, err = self.run_command(data, "--skip_refused")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("2 records (alpaca)", out)
        self.assertIn(f'records refused and left out: 1, the first: {data}:2: record 2: "output" is absent', out)
        (self.folder / "x.tokens").unlink()
        self.assertIn("all 1 records were refused", self.refused(self.write("b.jsonl", [{"instruction": "a", "input": "b", "output": 1}]), "--skip_refused"))

    def test_files_that_are_none(self):
        self.write("a.pdf", "x")
        self.write("empty.jsonl", "\n\n")
        self.write("odd.jsonl", [{"a": 1}])
        self.write("broken.parquet", "PAR1 and no more")
        (self.folder / "latin.txt").write_bytes(b"caf\xe9\n")
        self.write("short.csv", "prompt,completion\na\n")
        (self.folder / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:20])
        for name, what in (("a.pdf", "the ending .pdf says no kind of data"), ("empty.jsonl", "gives no record"), ("odd.jsonl", "of no known format (it has a)"), ("broken.parquet", "give a whole parquet"),
                           ("latin.txt", "no UTF-8"), ("short.csv", "short.csv:2: fewer fields"), ("torn.jsonl.gz", "copy the file again"), ("absent.jsonl", "check the path"), ("no/such", "./tandem fetch dataset no/such")):
            self.assertIn(what, self.refused(self.folder / name if "." in name else name))

    def test_an_end_token_of_any_length(self):
        model = self.folder / "long"
        model.mkdir()
        (model / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
        (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "\u00e9" * 5000}))
        found = self.prepare(self.write("a.jsonl", [{"instruction": "Say it.", "output": "It."}]), model=model)
        self.assertEqual(found.metadata["end_token"], "\u00e9" * 5000)

    def test_flags_that_cannot_be_met(self):
        chat, text = self.write("m.jsonl", [{"messages": CHAT}]), self.write("t.jsonl", [{"text": "a"}])
        bare = self.folder / "bare"
        bare.mkdir()
        (bare / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
        self.assertIn("has no chat template", self.refused(chat, "--append_eos", "off", model=bare))
        self.assertIn("names no eos_token", self.refused(chat, model=self.bare_of_end(bare)))
        self.assertIn("[chat_template] absent.jinja: No such file", self.refused(chat, "--chat_template", "absent.jinja"))
        self.assertIn("Encountered unknown tag", self.refused(chat, "--chat_template", "{% oops %}"))
        self.assertIn("use --loss_on all", self.refused(text, "--loss_on", "completion"))
        self.assertIn("raise it", self.refused(text, "--max_length", 0))
        self.assertIn('"instruction" is absent', self.refused(text, "--dataset_format", "alpaca"))
        self.assertIn("is neither a folder nor", self.refused(text, model="absent"))


class Mixtures(PrepareTest):
    def setUp(self):
        super().setUp()
        self.a = self.write("a.jsonl", [{"input_ids": [n]} for n in range(100)])
        self.b = self.write("b.jsonl", [{"input_ids": [n]} for n in range(100, 140)])

    def drawn(self, text, *flags):
        return [record[0] for record in self.prepare(text, *flags).ids]

    def test_shares_are_exact_and_follow_the_seed(self):
        found = self.drawn(f"{self.a}:0.7,{self.b}:0.3")
        # b serves 40 / 0.3 = 133 records, a 100 / 0.7 = 142; so 133 of which 93 are a's.
        self.assertEqual((sum(n < 100 for n in found), sum(n >= 100 for n in found)), (93, 40))
        for head in (10, 50, 100):
            self.assertAlmostEqual(sum(n < 100 for n in found[:head]) / head, 0.7, delta=0.03)
        first = [n for n in found if n < 100]
        self.assertEqual(first, sorted(set(first)))
        self.assertEqual(found, self.drawn(f"{self.a}:0.7,{self.b}:0.3"))
        self.assertEqual(found, self.drawn(f"{self.a}:7,{self.b}:3"))
        self.assertNotEqual(found, self.drawn(f"{self.a}:0.7,{self.b}:0.3", "--seed", 7))

    def test_without_shares_they_follow_one_another(self):
        self.assertEqual(self.drawn(f"{self.a},{self.b}"), list(range(140)))

    def test_each_record_is_as_likely_as_another(self):
        generator, counts = random.Random(3), [0] * 10
        for _ in range(2000):
            for n in mixture.chosen(range(10), 10, 3, generator):
                counts[n] += 1
        self.assertTrue(all(500 < count < 700 for count in counts), counts)

    def test_half_given_shares_are_refused(self):
        self.assertIn("1 of 2 data sets have a share", self.refused(f"{self.a}:0.7,{self.b}"))
        self.assertIn("give one above 0", self.refused(f"{self.a}:0,{self.b}:1"))


class Folders(PrepareTest):
    def test_a_folder_gives_its_training_files_in_order(self):
        for name, text in (("data/test.jsonl", "no"), ("data/train-00001.jsonl", "b"), ("data/train-00000.jsonl", "a"), ("dataset_info.json", "no")):
            (self.folder / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "set" / name).write_text(json.dumps({"text": text}))
        self.assertEqual(self.prepare(self.folder / "set").ids, [ids("a") + [END], ids("b") + [END]])
        (self.folder / "set" / "train.csv").write_text("text\na\n")
        (self.folder / "x.tokens").unlink()
        self.assertIn("several kinds (.csv, .jsonl)", self.refused(self.folder / "set"))

    def test_a_hub_id_is_looked_up_in_the_cache(self):
        import unittest.mock

        snapshot = self.folder / "datasets--org--name" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "train.jsonl").write_text('{"text": "a"}')
        with unittest.mock.patch.dict("os.environ", {"HF_HUB_CACHE": str(self.folder)}):
            self.assertEqual(files.data_files("org/name"), [snapshot / "train.jsonl"])
            self.assertEqual(self.prepare("org/name").ids, [ids("a") + [END]])


class ModelFolders(unittest.TestCase):
    def test_adapters_stand_for_the_model_that_they_name(self):
        with tempfile.TemporaryDirectory() as root:
            run, base = Path(root, "run"), Path(root, "base")
            (run / "adapter").mkdir(parents=True)
            base.mkdir()
            config = run / "adapter" / "adapter_config.json"
            for named in (str(base), "../../base"):
                config.write_text(json.dumps({"base_model_name_or_path": named}))
                for given in (run, run / "adapter"):
                    self.assertTrue(files.model_folder(str(given)).samefile(base))
            config.write_text(json.dumps({"base_model_name_or_path": "."}))  # ends, too
            self.assertTrue(files.model_folder(str(run)).samefile(run / "adapter"))
            for text, what in (("{}", "names no base_model_name_or_path"), ("{", "no JSON")):
                config.write_text(text)
                with self.assertRaisesRegex(errors.UserError, what):
                    files.model_folder(str(run))
            (run / "model").mkdir()
            (run / "model" / "config.json").write_text("{}")
            self.assertTrue(files.model_folder(str(run)).samefile(run / "model"))


if __name__ == "__main__":
    unittest.main()
