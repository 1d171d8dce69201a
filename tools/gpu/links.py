#!/usr/bin/env python3
"""Measures copies between pinned host memory and the GPU: each way alone, then both ways at once.

    links.py SECONDS            prints GB/s
    links.py SECONDS --traffic  copies both ways for that time and prints nothing
Invariant: a copy is 1 GiB, so that starting one costs nothing beside it.
"""

import argparse
import time

SIZE = 1 << 30
WAYS = [("host to device", True, False), ("device to host", False, True), ("both at once, each", True, True)]


class Links:
    def __init__(self):
        import torch

        self.cuda = torch.cuda
        self.host = [torch.empty(SIZE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.device = [torch.empty(SIZE, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def gb_per_s(self, up, down, seconds):
        """GB/s of each way that is asked for."""
        self.cuda.synchronize()
        begin, rounds = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            if up:
                with self.cuda.stream(self.streams[0]):
                    self.device[0].copy_(self.host[0], non_blocking=True)
            if down:
                with self.cuda.stream(self.streams[1]):
                    self.host[1].copy_(self.device[1], non_blocking=True)
            self.cuda.synchronize()
            rounds += 1
        return rounds * SIZE / (time.perf_counter() - begin) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--traffic", action="store_true")
    parser.add_argument("--stand-in", action="store_true", help="for a rehearsal: the lines, without a copy")
    args = parser.parse_args()
    if args.stand_in:
        print("" if args.traffic else "\n".join(f"{name}: 0.0 GB/s (stand-in)" for name, _, _ in WAYS))
        return
    links = Links()
    if args.traffic:
        links.gb_per_s(True, True, args.seconds)
        return
    for name, up, down in WAYS:
        links.gb_per_s(up, down, 0.3)
        print(f"{name}: {links.gb_per_s(up, down, args.seconds / 3):.1f} GB/s")


if __name__ == "__main__":
    main()
