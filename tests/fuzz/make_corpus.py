#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, tests/fuzz/corpus: small whole files of every kind that the readers know.

Needs numpy, safetensors and xxhash (the project's .venv). Every run writes the same files.
"""

import gzip
import json
import lzma
import shutil
import struct
import sys
from pathlib import Path

import numpy

CORPUS = Path(__file__).resolve().parent / "corpus"
SHARED = {"vocab_size": 11, "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu", "hidden_size": 8,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 10,
          "tie_word_embeddings": True, "torch_dtype": "float32"}


def put(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def put_json(target, name, value):
    put(target, name, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def safetensors(tensors, metadata=None):
    header, at, sizes = {}, 0, {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in tensors.items():
        size = sizes[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 251 for i in range(at))


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 256
    for byte in range(256):
        letters[byte] = chr(byte) if byte in plain else chr(extra)
        extra += byte not in plain
    return letters


def added_token(number, content, strips=False, special=True):
    return {"id": number, "content": content, "single_word": False, "lstrip": strips, "rstrip": strips,
            "normalized": not special, "special": special}


def tokenizer(normalizer, pattern, strips=True, **members):
    letters = byte_alphabet()
    vocab = {letters[byte]: byte for byte in range(256)}
    merges = []
    for left, right in (("h", "e"), ("l", "l"), ("he", "ll"), ("a", "b"), (letters[32], "a")):
        vocab[left + right] = len(vocab)
        merges.append(f"{left} {right}")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    split = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}] if pattern else []
    added = [added_token(len(vocab), "<s>"), added_token(len(vocab) + 1, " two words", strips=strips, special=False)]
    return {"version": "1.0", "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, level]}, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}, **members}


def make_tokenizers():
    qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    put_json("tokenizer", "qwen.json", tokenizer({"type": "NFC"}, qwen))
    put_json("tokenizer", "plain.json", tokenizer(None, None, strips=False))
    processor = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                          {"Sequence": {"id": "A", "type_id": 0}}],
                 "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                 "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]}}}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x"}, {"type": "NFKD"},
                                                      {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}]}
    put_json("tokenizer", "steps.json", tokenizer(normalizer, r"\p{N}{1,3}|(?<=a)b|\s", post_processor=processor))
    mark = "\u2581"
    vocab = {"<unk>": 0, "<s>": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}, mark: 258, "a": 259, "b": 260,
             mark + "a": 261, mark + "ab": 262}
    put_json("tokenizer", "sentencepiece.json", {
        "added_tokens": [added_token(1, "<s>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": mark}]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": mark}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": [[mark, "a"], [mark + "a", "b"]]}})
    put("text", "english", "Hello, hello wall! It's 2024 <s> and  two words \n\n\t ab  x")
    put("text", "scripts", "e\u0301\u0323 \u212b \u1112\u1161\u11ab \u65e5\u672c\u8a9e \U0001f600 \u0646\u0635 \ufdfa \u0344")
    put("text", "marks", "a" + "\u0301\u0323" * 40)


def make_configs():
    put_json("config", "llama.json", {"model_type": "llama", **SHARED})
    put_json("config", "mistral.json", {"model_type": "mistral", **SHARED, "sliding_window": 8})
    put_json("config", "phi3.json", {"model_type": "phi3", **SHARED, "vocab_size": 32001})
    put_json("config", "qwen2.json", {"model_type": "qwen2", **SHARED, "use_sliding_window": False})
    put_json("config", "qwen3.json", {"model_type": "qwen3", **SHARED, "head_dim": 6, "eos_token_id": [1, 2]})
    put_json("config", "qwen3_moe.json", {"model_type": "qwen3_moe", **SHARED, "num_experts": 4, "num_experts_per_tok": 2,
                                          "moe_intermediate_size": 3, "mlp_only_layers": [0]})
    put_json("config", "seed_oss.json", {"model_type": "seed_oss", **SHARED, "head_dim": 4})
    put_json("config", "gpt2.json", {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2,
                                     "n_positions": 32, "activation_function": "gelu_new"})
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 16}
    put_json("config", "gpt_oss.json", {"model_type": "gpt_oss", **SHARED, "head_dim": 4, "num_local_experts": 4,
                                        "num_experts_per_tok": 2, "sliding_window": 8, "rope_scaling": yarn,
                                        "quantization_config": {"quant_method": "mxfp4"}})
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16, "rope_theta": 500000.0}
    put_json("config", "mixtral.json", {"model_type": "mixtral", **SHARED, "num_local_experts": 4, "num_experts_per_tok": 2,
                                        "sliding_window": None, "router_jitter_noise": 0.0})
    gemma3 = {"model_type": "gemma3_text", **SHARED, "head_dim": 4, "sliding_window": 8, "sliding_window_pattern": 2,
              "query_pre_attn_scalar": 6}
    put_json("config", "gemma3_text.json", {**gemma3, "rope_local_base_freq": 100, "rope_scaling": yarn})
    put_json("config", "gemma3.json", {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
        **gemma3, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                      "sliding_attention": {"rope_theta": 100.0}}}})
    put_json("config", "rope_parameters.json", {"model_type": "llama", **SHARED, "rope_parameters": llama3, "dtype": "bfloat16"})


def make_deepspeed():
    put("deepspeed", "zero3.json", json.dumps({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 10}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True},
                              "stage3_param_persistence_threshold": 1e5}}, indent=1))
    put("deepspeed", "fp16.json", "{ // comments\n \"train_batch_size\": 8, \"fp16\": {\"enabled\": true, \"loss_scale\": 0,\n"
        " \"initial_scale_power\": 16, \"hysteresis\": 2}, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1,"
        " \"momentum\": 0.9}}, \"steps_per_print\": 10, }\n")


def make_data():
    record = {"instruction": "Say it.", "input": "", "output": "\u00e4 \ud83d\ude00 it"}
    text = json.dumps(record)
    put("alpaca", "json", "j[" + text + ",\n" + text + "]")
    put("alpaca", "lines", "l" + text + "\n\n" + text + "\n")
    image = bytes([3]) + bytes(i % 256 for i in range(3072))
    packed = lzma.compress(image, preset=0)
    put("cifar", "binary", b"b" + image)
    put("cifar", "packed", b"x" + packed)
    put("xz", "image", packed)
    put("xz", "text", lzma.compress(b"abc " * 50, check=lzma.CHECK_CRC32))
    put("mxfp4", "one", bytes([0, 1, 40, 200]) + bytes(i * 7 % 256 for i in range(2 * 17)))
    put("mxfp4", "groups", bytes([1, 2, 0, 255]) + bytes(i * 11 % 256 for i in range(3 * 2 * 3 * 17)))


def make_checkpoints():
    put("safetensors", "three", safetensors({"a.weight": ("F32", [4, 2]), "b": ("BF16", [3]), "c": ("F16", [])}, {"format": "pt"}))
    put("safetensors", "empty", safetensors({}))
    put("safetensors", "zero", safetensors({"z": ("I64", [0, 3]), "u": ("U8", [5])}))
    put_json("index", "two", {"metadata": {"total_size": 24},
                              "weight_map": {"a": "s1.safetensors", "b": "s1.safetensors", "c": "s2.safetensors"}})
    digest = "0123456789abcdef" * 2
    line = ('{"name":"w","dtype":"F32","shape":[2,3],"begin_byte":8,"size_bytes":24,"xxh3_128":"' + digest + '"}')
    put("manifest", "two", '{\n  "format": "tandem checkpoint",\n  "version": 1,\n  "step": 20,\n  "files": [\n'
        f'    {{"name": "m.safetensors", "size_bytes": 32, "xxh3_128": "{digest}", "tensors": [\n      {line}]}},\n'
        f'    {{"name": "state.json", "size_bytes": 5, "xxh3_128": "{digest}", "tensors": []}}]')
    run = ('{"name":"w[0:4]","dtype":"F32","shape":[4],"begin_byte":8,"size_bytes":16,"xxh3_128":"' + digest + '"}')
    save = f'"save": "{digest}", "disk": 0, "hosts": ["a", "b"]'
    whole = '"whole": [\n    {"name": "m.safetensors", "tensors": [\n      {"name":"w","dtype":"F32","shape":[2,3]}]}]'
    files = (f'  "files": [\n    {{"name": "m.safetensors", "size_bytes": 24, "xxh3_128": "{digest}", "tensors": [\n      {run}]}},\n'
             f'    {{"name": "state.json", "size_bytes": 5, "xxh3_128": "{digest}", "tensors": []}}]')
    put("manifest", "slices", '{\n  "format": "tandem checkpoint",\n  "version": 1,\n  "step": 20,\n'
        f'{files},\n  "slices": {{{save}, {whole}}}')
    put("manifest", "earlier_slices", '{\n  "format": "tandem slices",\n  "version": 1,\n  "step": 20,\n'
        f'  {save},\n{files},\n  {whole}')
    put_json("state", "fp16", {
        "format": 1, "version": "0.1.0", "step": 20, "applied_steps": 19, "schedule_steps": 19, "skipped_steps": 1,
        "skipped_in_a_row": 0, "next_micro_batch": 40, "batches_taken": 40, "epoch": 1, "epoch_micro_batches": 24,
        "speculation_history": 5, "loss_scaler": {"scale": 65536, "step": 20, "last_overflow": 3, "hysteresis": 2},
        "parameters": "x", "optimizer": "AdamW", "data_fingerprint": "y", "seed": "42", "micro_batch_size": 2,
        "step_micro_batches": 2, "world_size": 1, "zero_stage": 3, "precision": "fp16", "optimizer_state": "fp32",
        "config": {"train_batch_size": 4}})
    piece = [0, "F32", 0, 6]
    put_json("foreign_index", "two", {
        "kind": "deepspeed", "global_steps": 4, "skipped_steps": 0, "optimizer_steps": 4, "global_samples": 48, "schedule_step": 3, "zero_stage": 2,
        "scaler": {"scale": 1024.0, "step": 4, "last_overflow": 1, "hysteresis": 2}, "world_size": 2, "ds_version": "0.19.8", "ds_config": "{}",
        "client_state": "{\"note\": 1}", "tied": {"t": "w"}, "notes": ["x"], "files": [["data", 4096]],
        "storages": [[0, 64, 24, 0], [0, 128, 12, 0], [0, 256, 48, 0]], "tensors": [
            {"name": "w", "shape": [2, 3], "type": "F32", "frozen": False, "buffer": False, "stored": False, "master": [piece],
             "exp_avg": [[0, "F32", 0, 4], [1, "F32", 1, 2]], "exp_avg_sq": [[2, "F32", 0, 6, [2, 3], [1, 4]]]},
            {"name": "b", "shape": [3], "type": "BF16", "frozen": True, "buffer": True, "stored": True, "master": [[1, "BF16", 2, 3]]}]})


def make_token_files():
    sys.path.insert(0, str(CORPUS.parents[2] / "tools"))
    from prepare import token_file
    from prepare.encoder import Encoded

    token_file.ROOM_TO_GROW = 160  # so that a change falls on something that is read
    for name, vocab_size, lengths in (("short", 300, (3, 1, 9, 2)), ("wide", 70000, (2, 5))):
        path = CORPUS / "token_file" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [Encoded((numpy.arange(n) * 7919 + n) % vocab_size, numpy.arange(n) % 3 != 0, n > 2, n == 9, False) for n in lengths]
        with token_file.TokenFileWriter(path, vocab_size, 1, {"tokenizer": "0" * 32, "loss_on": "completion"}) as writer:
            writer.add(records)
            writer.finish()


def make_peers():
    def request(question, key, value=b"", value_bytes=None):
        return struct.pack("<IIQ", question, len(key), len(value) if value_bytes is None else value_bytes) + key + value
    put("rendezvous", "opening", b"\0" + struct.pack("<QII32s", 0x74616e64656d7276, 1, 0, b"nonce") + b"proof" * 8)
    put("rendezvous", "requests", b"\1" + request(1, b"rank/0", b"address") + request(2, b"count") + request(3, b"rank/0"))
    put("rendezvous", "cut", b"\1" + request(1, b"key", b"value", 1 << 24))
    for kind in range(16):
        put("shm", f"honest-{kind}", bytes([kind]))
    put("shm", "offset", bytes([0]) + struct.pack("<HQ", 181, 1 << 40))  # of the first channel's first header
    put("shm", "aborted", bytes([10]) + struct.pack("<HII", 16, 2, 77) + struct.pack("<H8s", 17, b"a\nb\x1b[1m"))
    for mode in (0x80, 0xC0, 0xE0):  # of a hello: not proven, proven, without memory
        put("shm", f"hello-{mode:x}", bytes([mode]))


def make_runs():
    """Seeds for the readers of a run's folder, of its launcher's messages and of its status socket."""
    order = ["h", "", 0, 1, 2, 0, 2, 0, 1, 0, 0, 30000, 0, "127.0.0.1", "s" * 64, "/", "", 1, "A=b\\nc", 2, "true", "x"]
    put("order", "order", "\0" + "".join(f"{field}\n" for field in order))
    for number, news in enumerate(("ready 10.0.0.1 29500", "failed 1 137 0", "failed 0 4 -1", "stopped 1", "runs 1",
                                   "ended 7 rank 1 of 2 exited with code 7", "refused 2 [launch] no folder /x")):
        put("order", f"news-{number}", "\1" + news)
    put("hosts", "hostfile", "\0# two\nb slots=2\n  a.local \t slots=1 # old\r\n")
    put("hosts", "hosts", "\1a:2,b,c:8")
    put("hosts", "include", "\2a:4,b:4\0a@b:1,3")
    put("hosts", "exclude", "\3a:4,b:4\0b:0")
    put("hosts", "variables", "\4# x\nNCCL_DEBUG=INFO\nA = b=c\n")
    mark = '{{"ph":"i","pid":1,"tid":1,"ts":{},"args":{{"step":{}}}}},\n'
    span = '{"ph":"X","name":"forward","pid":1,"tid":2,"ts":10,"dur":5.5},\n'
    name = '{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"compute"}},\n'
    head = '{"displayTimeUnit":"ms","otherData":{"end_ns":50000},"traceEvents":[\n'
    put("trace", "whole", head + name + mark.format(0, 1) + span + mark.format(20, 2) + mark.format(40, 3) + "]}\n")
    put("trace", "packed", gzip.compress((head + name + mark.format(0, 1) + span + "]}\n").encode(), mtime=0))
    line = '{"step":%d,"loss":2.5,"lr":0.1,"grad_norm":1,"verdict":"%s","speculated":true}\n'
    metrics = line % (1, "commit") + line % (2, "rollback") + '{"step":2,"eval_loss":"NaN"}\n'
    put("run_report", "run", metrics + '\0{"ended":"done","memory":{"host":{"predicted_bytes":1}}}\0notes\nof it\n')
    put("cut_metrics", "metrics", "\0" + metrics + line % (30, "skip"))
    put("cut_metrics", "rows", "\2step,loss\n1,2.5\n30,2.25\n")
    event = b"\x09" + bytes(8) + b"\x10\x14"
    put("cut_metrics", "events", b"\1" + struct.pack("<QI", len(event), 0) + event + bytes(4))
    put("top", "actors", json.dumps({"scopes": [{"tasks": [{"name": "step", "awaits": "x.cpp:1", "since_s": 0.5}]}],
                                     "actors": [{"name": "optimizer", "depth": 2}]}))
    put("status", "get", "GET /step HTTP/1.0\r\n\r\n")
    put("status", "others", "POST /x?y HTTP/1.1\nHost: a\n\n")
    for number, lines in enumerate((
            ("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"),
            ("SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NTASKS_PER_NODE=2", "SLURM_JOB_ID=77",
             "SLURM_STEP_NODELIST=n[003-010,12],other"),
            ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
             "OMPI_COMM_WORLD_LOCAL_SIZE=2"))):
        put("variables", f"launcher-{number}", "\n".join(lines) + "\n")
    put("sim_spec", "all", "compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,memory=16GB,latency=10us")
    put("bandwidths", "two", "a machine\t5.5e9\nanother\tx\n")
    entry = struct.pack("<QqQQQ", 1, 10, 11 | 0xffffffff << 32, 7, 4096)
    put("flight", "ring", (struct.pack("<Q", 1) + bytes(56) + entry) * 2)


def main():
    shutil.rmtree(CORPUS, ignore_errors=True)
    for make in (make_tokenizers, make_configs, make_deepspeed, make_data, make_checkpoints, make_token_files, make_peers, make_runs):
        make()
    size = sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file())
    print(f"{size} bytes in {CORPUS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
