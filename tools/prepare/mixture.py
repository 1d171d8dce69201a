"""Several data sets as one: `a.jsonl:0.7,b.jsonl:0.3`.

Shares are exact, of whole data sets as large as the shares allow: a set of n records and share w can serve n / w in
all, the smallest of these is the mixture's size, and each set gives its share of it, rounded down. Which of its records
it gives is drawn without return by random.Random(seed:number of the set) while it is read (selection sampling); they
keep their order. Each next record comes from the set that is furthest behind its share, the first of those that are
equal. Without shares the sets follow one another, whole.
"""

import random
from typing import NamedTuple

from prepare.errors import UserError
from prepare.files import is_file, is_folder

LEAST_SHARE, MOST_SHARE = 1e-9, 1e9  # within these no sum or product of shares and counts leaves the numbers of a machine


class Part(NamedTuple):
    name: str
    share: float  # 0: none is given


def parse(text):
    if is_there(text):
        return [Part(text, 0)]
    parts = [part_of(item) for item in text.split(",") if item]
    shares = [part.share for part in parts if part.share]
    if not parts or (shares and len(shares) != len(parts)):
        raise UserError(f"[prepare] dataset {text}: {len(shares)} of {len(parts)} data sets have a share; give all of them one (a.jsonl:0.7,b.jsonl:0.3) or none")
    return parts


def is_there(name):
    return is_file(name) or is_folder(name)


def part_of(item):
    name, mark, share = item.rpartition(":")
    if not mark or is_there(item):
        return Part(item, 0)
    try:
        found = float(share)
    except ValueError:
        return Part(item, 0)
    if not LEAST_SHARE <= found <= MOST_SHARE:
        raise UserError(f"[prepare] dataset {item}: a share of {share}; give one above 0, from {LEAST_SHARE:g} to {MOST_SHARE:g}")
    return Part(name, found)


def mixed(parts, read, seed):
    """Records of all parts; read(name) iterates over one part's, and is called twice where there are shares."""
    if not parts[0].share:
        for part in parts:
            yield from read(part.name)
        return
    counts = [sum(1 for _ in read(part.name)) for part in parts]
    quotas = quotas_of(parts, counts)
    sources = [chosen(read(part.name), count, quota, random.Random(f"{seed}:{number}"))
               for number, (part, count, quota) in enumerate(zip(parts, counts, quotas))]
    given = [0] * len(parts)
    for _ in range(sum(quotas)):
        number = min((n for n in range(len(parts)) if given[n] < quotas[n]), key=lambda n: (given[n] + 1) / quotas[n])
        given[number] += 1
        yield next(sources[number])


def quotas_of(parts, counts):
    whole = sum(part.share for part in parts)
    most = min(count * whole / part.share for part, count in zip(parts, counts))
    # Half a millionth of a record: 0.7 of 10 is 7 though 0.7 is no binary number.
    return [min(count, int(most * part.share / whole + 5e-7)) for part, count in zip(parts, counts)]


def chosen(records, count, quota, generator):
    """`quota` of the `count` records, each choice of them equally likely, in their order."""
    for left, record in zip(range(count, 0, -1), records):
        if generator.random() * left < quota:
            quota -= 1
            yield record
