"""The flags of ./tandem prepare, and the order of its work: records -> samples -> ids -> file."""

import argparse
import concurrent.futures
import json
import os
from pathlib import Path

from prepare import bounds, files, formats, mixture
from prepare.encoder import Encoder
from prepare.errors import Refused, UserError, exit_code_of, first_line, say
from prepare.leftovers import remove_leftovers
from prepare.template import find_template
from prepare.token_file import TokenFileWriter
from prepare.tokenizer import Tokenizer

BATCH_RECORDS = 512
MOST_NAMED = 20
FORMATS = ["auto", "alpaca", "alpaca_chat", "messages", "sharegpt", "prompt", "text", "tokens"]
LOSSES = ["all", "assistant", "completion"]


def add_data_flags(parser):
    """Those that decide what is in a token file."""
    parser.add_argument("--dataset_format", choices=FORMATS, default="auto", help="what a record means; auto: by its members")
    parser.add_argument("--dataset_config", "--dataset_config_name", metavar="C", help="which config of the data set, where its README.md lists several")
    parser.add_argument("--columns", metavar="OURS=THEIRS,...", help="members under other names: instruction=question,output=answer")
    parser.add_argument("--chat_template", metavar="T", help="a file, or the name of one of the model's templates; without it: the model's own")
    parser.add_argument("--loss_on", choices=LOSSES, help="what is learnt; without it: completion, of messages assistant, of text all")
    parser.add_argument("--append_eos", choices=["on", "off"], default="on", help="the end token behind each answer or text; a template ends chats itself (on)")
    parser.add_argument("--max_length", type=int, metavar="N", help="cut records at so many tokens; without it training cuts them")
    parser.add_argument("--sample_by", choices=["line", "paragraph", "document"], default="line", help="what of a .txt is a record (line)")
    parser.add_argument("--seed", type=int, default=42, help="of the choice of records in a mixture (42)")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"[flags] {message}; tandem prepare --help lists the flags")


def parse(arguments):
    parser = Parser(prog="tandem prepare", description="Turns data of any form into a token file for --dataset_name. docs/data.md says what is read.")
    parser.add_argument("--model_name", required=True, metavar="D", help="a model's folder, or a hub id in the cache: its tokenizer and chat template")
    parser.add_argument("--dataset_name", required=True, metavar="F", help=f"a file ({files.KINDS}), a folder or a hub id in the cache; several: a.jsonl:0.7,b.jsonl:0.3")
    parser.add_argument("--output", required=True, metavar="X.tokens", help="the file to write")
    parser.add_argument("--skip_refused", action="store_true", help="leave out records that cannot be used, and count them")
    add_data_flags(parser)
    return parser.parse_args(arguments)


def records_of(name, sample_by, config=None):
    for path in files.data_files(name, None if files.is_file(name) else config):
        yield from files.records(path, sample_by)


def columns_of(text):
    """ours -> theirs of --columns."""
    pairs = [item.split("=") for item in (text or "").split(",") if item]
    if any(len(pair) != 2 or not all(pair) for pair in pairs) or len({pair[0] for pair in pairs}) < len(pairs):
        raise UserError(f"[flags] --columns {text}: give names as in instruction=question,output=answer, each of ours once")
    return dict(pairs)


class Samples:
    """Records with their samples; the format is that of each file's first record."""

    def __init__(self, args):
        self.args = args
        self.columns = columns_of(args.columns)
        self.formats = {}  # by file
        self.unused = {}  # members that nobody knows, in the order in which they were met
        self.empty_answers = 0  # records with one that is learnt

    def of(self, record):
        if isinstance(record.value, Refused):
            raise record.value
        record = record._replace(value=formats.renamed(record.value, self.columns))
        if record.path not in self.formats:
            given = self.args.dataset_format
            self.formats[record.path] = formats.detect(record) if given == "auto" else given
        sample, unused = formats.sample_of(self.formats[record.path], record)
        self.unused |= dict.fromkeys(unused)
        self.empty_answers += formats.has_empty_answer(sample)
        return sample

    def usual_loss_on(self):
        """Returns the part that is learnt without --loss_on; "mixed", where the files differ in it."""
        found = {formats.LEARNT[name] for name in self.formats.values()}
        return found.pop() if len(found) == 1 else "mixed"


class Refusals:
    """Ends with the first record that cannot be used, or counts them."""

    def __init__(self, skip):
        self.skip = skip
        self.count = 0
        self.first = ""

    def add(self, record, refused):
        self.first = self.first or f"{record.place}: {refused}"
        self.count += 1
        if not self.skip:
            raise UserError(f"[prepare] {self.first}; mend it, or leave out such records by --skip_refused")


def prepare(args, tokenizer, path):
    """Writes the file; the lines that say what is in it."""
    found = None

    def template():
        nonlocal found
        found = found or find_template(tokenizer, args.chat_template)
        return found

    if args.chat_template is not None:
        template()
    samples, refusals = Samples(args), Refusals(args.skip_refused)
    encoder = Encoder(tokenizer, template, args.loss_on, args.append_eos == "on", args.max_length)
    parts = mixture.parse(args.dataset_name)
    records = mixture.mixed(parts, lambda name: records_of(name, args.sample_by, args.dataset_config), args.seed)
    metadata = {"tokenizer": tokenizer.hash, "source": args.dataset_name, "append_eos": args.append_eos,
                "max_length": str(args.max_length or 0)}
    coming = [max(tokenizer.specials.values(), key=lambda text: len(json.dumps(text)), default=""), found.name if found else ""]  # one of them ends answers
    with TokenFileWriter(path, tokenizer.vocab_size, tokenizer.id_of("bos_token"), metadata, coming) as writer:
        for encoded in encoded_batches(records, samples, encoder, refusals):
            writer.add(encoded)
        check(args, writer, refusals)
        writer.metadata["loss_on"] = args.loss_on or samples.usual_loss_on()
        used = found.used() if found else []
        if used:
            writer.metadata |= {"template": ", ".join(one.name for one in used), "template_xxh3_128": ", ".join(one.hash for one in used)}
        writer.metadata["end_token"] = encoder.last_learnt or ""
        writer.finish()
        return data_lines(writer, tokenizer, encoder, samples, used, refusals)


def encoded_batches(records, samples, encoder, refusals):
    """Lists of Encoded. The next batch is read while one is encoded: here, where signals end a template in time."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next_batch, records, samples)
        while batch := coming.result():
            coming = pool.submit(next_batch, records, samples)
            answers = encoder.encode([sample for _, sample in batch if not isinstance(sample, Refused)])
            yield usable(batch, answers, refusals)


def next_batch(records, samples):
    """[(record without its value, sample or Refused)], bounded in records and in what they hold."""
    batch, size = [], 0
    for record in records:
        batch.append((record._replace(value=None), sample_or_refused(record, samples)))
        size += bounds.weight(record.value)
        if len(batch) == BATCH_RECORDS or size >= bounds.BATCH_CHARACTERS:
            break
    return batch


def sample_or_refused(record, samples):
    try:
        return samples.of(record)
    except Refused as refused:
        return refused
    except RecursionError:
        return Refused(bounds.TOO_DEEP)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        return Refused(f"it has a form that no reader expects ({type(error).__name__}: {first_line(error)})")


def usable(batch, answers, refusals):
    encoded, found = [], iter(answers)
    for record, sample in batch:
        answer = sample if isinstance(sample, Refused) else next(found)
        if isinstance(answer, Refused):
            refusals.add(record, answer)
        else:
            encoded.append(answer)
    return encoded


def check(args, writer, refusals):
    """Refuses a file that is no use as training data."""
    if not writer.counts["records"]:
        why = f"; all {refusals.count} records were refused, the first: {refusals.first}" if refusals.count else "; give at least one record"
        raise UserError(f"[prepare] {args.dataset_name} gives no record{why}")


def template_words(template, loss_on):
    masks = "its generation blocks" if template.has_generation else "verified prefixes"
    return template.name if loss_on == "all" else f"{template.name} (masks by {masks})"


def data_lines(writer, tokenizer, encoder, samples, templates, refusals):
    counts = writer.counts
    share = 100 * counts["learnt"] / counts["tokens"]
    kinds = ", ".join(sorted(set(samples.formats.values())))
    end = encoder.last_learnt or "none"
    by = f", template {' and '.join(template_words(one, encoder.loss_on) for one in templates)}" if templates else ""
    yield f"data     {counts['records']} records ({kinds}), {counts['tokens']} tokens, {share:.1f} % learnt, {counts['cut']} cut{by}, end token {end}"
    if counts["nothing"]:
        yield f"data     records with nothing to learn: {counts['nothing']}, {counts['lost_by_cut']} of them because they were cut"
    if samples.empty_answers:
        yield f"data     records with an empty answer, which teaches the model to end at once: {samples.empty_answers}"
    for found, what in ((samples.unused, "members that are not used"), (encoder.unasked, "the template does not ask for")):
        if found:
            names = list(found)
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            yield f"note     {what}: {', '.join(names[:MOST_NAMED])}{more}"
    if refusals.count:
        yield f"data     records refused and left out: {refusals.count}, the first: {refusals.first}"


def run(arguments):
    args = parse(arguments)
    path = Path(args.output)
    if path.suffix != ".tokens":
        raise UserError(f"[prepare] output {path} does not end in .tokens, by which training knows it; name it so")
    if not path.parent.is_dir():
        raise UserError(f"[prepare] output {path}: there is no folder {path.parent}; make it")
    remove_leftovers(path)
    folder = files.tokenizer_folder(args.model_name)
    tokenizer = Tokenizer(folder)
    for line in prepare(args, tokenizer, path):
        say(line)
    if tokenizer.note:
        say(f"note     {folder}: {tokenizer.note}")
    if not files.is_folder(args.model_name):
        say(f"note     {args.model_name} is {folder}")
    for part in mixture.parse(args.dataset_name):
        found = files.resolved(part.name, args.dataset_config)
        if found:
            say(f"note     {found}")
    say(f"wrote    {path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def main(arguments=None):
    return exit_code_of(lambda: run(arguments))


os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
