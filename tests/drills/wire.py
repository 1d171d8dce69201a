"""Hosts on a wire that delays, loses and throttles: TAP devices of network namespaces, joined by a switch in a process.

For kernels without netem. The switch learns which address is at which port, as any does. Per frame it draws whether the
frame is lost and how long it takes; frames to one port keep their order, go at a rate, and wait in a queue of bounded
length. As root.

    with WiredHosts(2, Wire(delay_s=(0.002, 0.003), loss=0.01, bytes_per_s=20e6)) as hosts: ...
"""

import fcntl
import heapq
import multiprocessing
import os
import random
import select
import struct
import time
from typing import NamedTuple

from drill import Hosts

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65536
QUEUE_S = 0.1  # a frame that would wait for longer is dropped


class Wire(NamedTuple):
    delay_s: tuple = (0.0, 0.0)  # drawn from these
    loss: float = 0.0  # of frames
    bytes_per_s: float = float("inf")  # to each port


class WiredHosts(Hosts):
    """As Hosts, on `wire`."""

    def __init__(self, count, wire):
        self._taps = []
        self._is_stalled = multiprocessing.RawArray("b", count)
        self._switch = None
        super().__init__(count)
        if self.problem is None:
            self._switch = multiprocessing.get_context("fork").Process(
                target=switch, args=(self._taps, wire, self._is_stalled), daemon=True)
            self._switch.start()

    def __exit__(self, *arguments):
        if self._switch is not None:
            self._switch.kill()
            self._switch.join()
        for tap in self._taps:
            os.close(tap)
        super().__exit__(*arguments)

    def _join(self, space):
        self._taps.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        fcntl.ioctl(self._taps[-1], TUNSETIFF, struct.pack("16sH", space.encode(), IFF_TAP | IFF_NO_PI))
        self._ip("link", "set", space, "netns", space, "name", "lan")

    def stall(self, host):
        self._is_stalled[host] = 1

    def restore(self, host):
        self._is_stalled[host] = 0


def switch(taps, wire, is_stalled):
    """Passes frames on for ever."""
    chance = random.Random(1)
    ports = {}  # by address
    free_at = [0.0] * len(taps)  # when the last frame to a port has left
    due_at = [0.0] * len(taps)  # when it arrives
    under_way = []  # a heap of (time, number, port, frame)
    number = 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, port, frame = heapq.heappop(under_way)
            if not is_stalled[port]:
                try:
                    os.write(taps[port], frame)
                except OSError:  # the device is down, or its queue full
                    pass
        wait_s = under_way[0][0] - now if under_way else 0.05
        readable = select.select(taps, [], [], wait_s)[0]
        now = time.monotonic()
        for tap in readable:
            source = taps.index(tap)
            try:
                frame = os.read(tap, FRAME_BYTES_MAX)
            except OSError:
                continue
            ports[frame[6:12]] = source
            known = ports.get(frame[:6])
            for port in range(len(taps)) if known is None else (known,):
                if port == source or is_stalled[source] or is_stalled[port] or chance.random() < wire.loss:
                    continue
                begins = max(now, free_at[port])
                if begins - now > QUEUE_S:
                    continue
                free_at[port] = begins + len(frame) / wire.bytes_per_s
                due_at[port] = max(due_at[port], free_at[port] + chance.uniform(*wire.delay_s))
                number += 1
                heapq.heappush(under_way, (due_at[port], number, port, frame))
