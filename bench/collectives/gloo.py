#!/usr/bin/env python3
"""torch.distributed's Gloo on the same collectives, for bench_collectives.

gloo.py WORLD BYTES...   prints "OPERATION BYTES SECONDS" lines: the least over rounds of the slowest rank's time of one
operation on a block of BYTES (fp32), all ranks on this host."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS = 15


def time_of(operation, times):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(times):
        operation()
    seconds = torch.tensor([(time.perf_counter() - start) / times])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def rank_main(rank, world, sizes, store):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for size in sizes:
        elements = size // 4
        block = torch.zeros(elements)
        shard = torch.zeros(elements // world)
        operations = {
            "all_gather": lambda: dist.all_gather_into_tensor(block, shard),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, block),
        }
        for name, operation in operations.items():
            once = time_of(operation, 2)
            times = max(2, min(200, int(0.05 / once)))
            seconds = min(time_of(operation, times) for _ in range(ROUNDS))
            if rank == 0:
                print(name, size, repr(seconds), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    world, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (world, sizes, os.path.join(folder, "store")), nprocs=world)


if __name__ == "__main__":
    main()
