#!/usr/bin/env python3
"""torch.distributed's Gloo on the collectives of tools/bench/net.py: one of two ranks on hosts of their own.

gloo.py RANK ADDRESS PORT INTERFACE   for each line "OPERATION BYTES TIMES" on standard input: the seconds that these took."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

WORLD = 2
MOST_BYTES = 64 << 20


def main():
    rank, address, port, interface = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=WORLD,
                            timeout=timedelta(seconds=60))
    block, into = (torch.zeros(MOST_BYTES // 4).fill_(0) for _ in range(2))  # pages of their own
    print("ready", flush=True)
    for line in sys.stdin:
        name, size, times = line.split()
        whole, part = int(size) // 4, int(size) // 4 // WORLD
        own, got = block[:whole], into[:whole]
        operation = {
            "all_gather": lambda: dist.all_gather_into_tensor(got, block[:part]),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(into[:part], own),
            "all_reduce": lambda: dist.all_reduce(own),
            "all_to_all": lambda: dist.all_to_all_single(got, own),
        }[name]
        dist.barrier()
        start = time.perf_counter()
        for _ in range(int(times)):
            operation()
        print(repr(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main()
