#!/usr/bin/env python3
"""How ranks of two hosts meet, and what keeps them from it: namespaces with a network, a name and an address each.

A failed start ends with one line that names the cause and the host, the exit code is 2 or 4, and no process is left on
either host. Strangers, a second network and a clock that is off do not disturb a start: the losses and the weights are
those of one host.

    tests/drills/meeting.py            12 cells; less than a minute
    tests/drills/meeting.py --quick    7 of them

As root, with `ip` and `unshare`; where namespaces are not allowed it says so and ends with exit code 77. The last line
of the output is the summary, one JSON object; exit code 1 where something is wrong.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from drill import ROOT, Hosts, default_bin, digits, processes, scratch
from hosts import MODEL, Cell, finish, flags, start

CELL = Cell(2, 1, 3, "full", "fp32")
MEET_S = 5  # at most, where ranks cannot meet
LIMIT_S = 60
GARBAGE = 10003
SOON = {"TANDEM_RENDEZVOUS_TIMEOUT_S": str(MEET_S)}
QUICK = ("listeners", "strangers", "a name that is not known", "a port that is taken", "packets dropped after the meeting",
         "another version", "other weights")


def in_namespace(space, function):
    """Its result, by a thread that is in the network namespace."""
    result = []

    def run():
        handle = os.open(f"/run/netns/{space}", os.O_RDONLY)
        try:
            os.setns(handle, os.CLONE_NEWNET) if hasattr(os, "setns") else set_namespace(handle)
        finally:
            os.close(handle)
        result.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def set_namespace(handle):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def listeners(space):
    """(address, port) of every TCP socket that listens there."""

    def read():
        found = set()
        for name, width in (("tcp", 4), ("tcp6", 16)):
            for line in Path(f"/proc/thread-self/net/{name}").read_text().splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A":
                    address, port = local.split(":")
                    number = bytes.fromhex(address)
                    number = b"".join(struct.pack("<I", *struct.unpack(">I", number[at:at + 4])) for at in range(0, width, 4))
                    found.add((socket.inet_ntop(socket.AF_INET if width == 4 else socket.AF_INET6, number), int(port, 16)))
        return found

    return in_namespace(space, read)


def pester(space, address, port, count):
    """Connections of strangers: some say nothing, some garbage, some a great deal of it."""
    made = 0
    held = []

    def run():
        nonlocal made
        for number in range(count):
            with contextlib.suppress(OSError):
                stranger = socket.create_connection((address, port), timeout=2)
                made += 1
                with contextlib.suppress(OSError):
                    stranger.setblocking(False)
                    stranger.send((b"", b"\0" * 4, b"GET / HTTP/1.1\r\n\r\n", os.urandom(2000))[number % 4])
                held.append(stranger)
                if len(held) > 200:
                    held.pop(0).close()

    in_namespace(space, run)
    for stranger in held:
        stranger.close()
    return made


class Meeting:
    def __init__(self, programs, hosts, folder):
        self.programs, self.hosts, self.folder = programs, hosts, folder
        self.model = self.make_model("model", 1)
        self.port = 21000 + int.from_bytes(os.urandom(2), "big") % 9000
        self.variables = {"TANDEM_RENDEZVOUS_TIMEOUT_S": str(LIMIT_S), "TANDEM_DRILL_MARK": os.urandom(8).hex()}
        codes, said = finish(start(Cell(1, 2, 3, "full", "fp32"), self.command("one host"), None))
        assert codes == [0, 0], said
        self.wanted = digits(folder / "one host")

    def make_model(self, name, seed, sizes=MODEL):
        output = self.folder / name
        subprocess.run([self.programs / "make_model", "--config", ROOT / "examples/demo/config.json", "--tokenizer",
                        ROOT / "examples/demo", "--seed", str(seed), "--output", output, *sizes.split()], check=True,
                       stdout=subprocess.DEVNULL)
        return output

    def command(self, output, model=None, data=None, program=None):
        name, *arguments = flags(CELL, self.folder / output, model or self.model)
        if data:
            arguments[arguments.index("--dataset_name") + 1] = data
        return [program or self.programs / name, *arguments]

    def start(self, on_host, output="run", more=None):
        return start(CELL, self.command(output), on_host, self.port, {**self.variables, **(more or {})})

    def starts(self, ranks, output="run"):
        """Faults of a start that nothing may disturb."""
        codes, said = finish(ranks, LIMIT_S)
        if codes != [0, 0]:
            return [f"exit codes {codes}: {said}"]
        return [] if digits(self.folder / output) == self.wanted else [f"it has {digits(self.folder / output)}"]

    def fails(self, ranks, codes, pattern, limit_s=MEET_S + 15):
        """Faults of a start that ends with these exit codes, and a line of each rank with the pattern of its own."""
        begun = time.monotonic()
        got, said = finish(ranks, LIMIT_S)
        took = time.monotonic() - begun
        faults = [] if got == codes else [f"exit codes {got}, not {codes}: {said}"]
        for rank, text in enumerate(said):
            lines = [line for line in text.splitlines() if line.startswith("error: ")]
            wanted = pattern[rank] if isinstance(pattern, tuple) else pattern
            if len(lines) != 1 or not re.search(wanted, lines[0]):
                faults.append(f"rank {rank} says {text!r}, nothing like {wanted}")
        if took > limit_s:
            faults.append(f"it took {took:.1f} s")
        return faults

    def left(self):
        """Processes of these runs."""
        mark = f"TANDEM_DRILL_MARK={self.variables['TANDEM_DRILL_MARK']}".encode()
        return [pid for pid, state, variables in processes() if mark in variables and state != "Z"]

    @contextlib.contextmanager
    def dropping(self, host, but_port=None):
        """Drops the packets that the host sends to the others, but for that port's."""
        space = self.hosts.spaces[host]
        network, nobody = "10.213.7.0/24", "10.213.7.250"

        def ip(*arguments):
            subprocess.run(["ip", "-n", space, *arguments], check=True)

        ip("neigh", "replace", nobody, "lladdr", "02:00:00:00:00:99", "dev", "lan", "nud", "permanent")
        ip("route", "add", network, "via", nobody, "dev", "lan", "table", "100")
        if but_port:
            for side in ("sport", "dport"):
                ip("rule", "add", "to", network, "ipproto", "tcp", side, str(but_port), "lookup", "main", "pref", "10")
        ip("rule", "add", "to", network, "lookup", "100", "pref", "20")
        try:
            yield
        finally:
            for _ in range(3 if but_port else 1):
                ip("rule", "del", "pref", "20" if _ == 0 else "10")
            ip("route", "flush", "table", "100")

    # ---- the cells

    def listeners(self):
        """With a second network beside, nothing listens but on the one that is asked for."""
        for host in range(2):
            space = self.hosts.spaces[host]
            for command in (["link", "add", "other", "netns", space, "type", "veth", "peer", "name", f"other-{host}", "netns",
                             self.hosts.bridge],
                            ["-n", space, "addr", "add", f"10.99.0.{host + 1}/24", "dev", "other"],
                            ["-n", space, "link", "set", "other", "up"]):
                subprocess.run(["ip", *command], check=True)
        ranks = self.start(self.hosts.command)
        seen = [set(), set()]
        while any(process.poll() is None for process in ranks):
            for host in range(2):
                seen[host] |= listeners(self.hosts.spaces[host])
            time.sleep(0.01)
        faults = self.starts(ranks)
        for host in range(2):
            subprocess.run(["ip", "-n", self.hosts.spaces[host], "link", "del", "other"], check=True)
            others = {place for place in seen[host] if place[0] != self.hosts.address(host)}
            if others or not seen[host]:
                faults.append(f"on {self.hosts.name(host)} there listened {sorted(seen[host])}")
        return faults

    def strangers(self):
        """Thousands come to the meeting before it can end, and some to UCX's ports."""
        address, space = self.hosts.address(0), self.hosts.spaces[1]
        command = self.command("run")
        late = ["sh", "-c", f'[ "$RANK" = 0 ] || while [ ! -e "{self.folder}/pestered" ]; do sleep 0.05; done; exec "$@"', "rank"]
        ranks = start(CELL, [*late, *command], self.hosts.command, self.port, self.variables)
        while ranks[0].poll() is None and not listeners(self.hosts.spaces[0]):
            time.sleep(0.02)
        made = pester(space, address, self.port, GARBAGE)
        (self.folder / "pestered").touch()
        at_ucx, seen = 0, set()
        while any(process.poll() is None for process in ranks):
            for place in listeners(self.hosts.spaces[0]) - {(address, self.port)} - seen:
                seen.add(place)
                at_ucx += pester(space, *place, 20)
            time.sleep(0.005)
        faults = self.starts(ranks)
        print(f"     {made} strangers at the meeting, {at_ucx} at UCX's ports", flush=True)
        return faults + ([f"only {made} strangers came to the meeting, {at_ucx} to UCX's ports"]
                         if made < GARBAGE or at_ucx == 0 else [])

    def a_clock_that_is_off(self):
        """The other host has been up for a day longer, by its clocks."""
        shifted = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400"]
        if subprocess.run([*shifted, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            print("     no time namespaces here", flush=True)
            return []
        return self.starts(self.start(lambda host, command: self.hosts.command(host, [*shifted, *command] if host else command)))

    def a_name_that_is_not_known(self):
        return self.fails(self.start(self.hosts.command, more={"MASTER_ADDR": "no-such-host.invalid"}), [2, 2],
                          "no-such-host.invalid")

    def a_name_of_the_loopback(self):
        names = self.folder / "names"
        names.write_text("127.0.0.1 localhost\n127.0.1.1 host-a\n")
        others = self.folder / "others"
        others.write_text(f"127.0.0.1 localhost\n{self.hosts.address(0)} host-a\n")
        return self.fails(
            self.start(lambda host, command: self.hosts.command(host, command, others if host else names, "/etc/hosts"),
                       more={"MASTER_ADDR": "host-a", **SOON}),
            [2, 4], ("MASTER_ADDR host-a is 127.0.1.1", "rank 0"))

    def a_port_that_is_taken(self):
        taker = subprocess.Popen(self.hosts.command(0, [sys.executable, "-c", "import socket, time\ns = socket.socket()\n"
                                                        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
                                                        f"s.bind(('{self.hosts.address(0)}', {self.port}))\ns.listen()\n"
                                                        "time.sleep(60)"]))
        while taker.poll() is None and not listeners(self.hosts.spaces[0]):
            time.sleep(0.02)
        faults = self.fails(self.start(self.hosts.command, more=SOON), [2, 4], f"port.*{self.port}")
        taker.kill()
        taker.wait()
        return faults

    def packets_dropped_before_the_meeting(self):
        with self.dropping(0):
            return self.fails(self.start(self.hosts.command, more=SOON), [4, 4], ("1 of 2 ranks came", f"rank 0.*{self.hosts.address(0)}"))

    def packets_dropped_after_the_meeting(self):
        with self.dropping(0, self.port), self.dropping(1, self.port):
            return self.fails(self.start(self.hosts.command, more=SOON), [4, 4],
                              ("receives nothing from rank 1 .on host host-b. over UCX", "receives nothing from rank 0 .on host host-a. over UCX"), 2 * MEET_S + 15)

    def another_version(self):
        program = self.folder / "other" / "finetune_zero3"
        program.parent.mkdir()
        said = subprocess.run([self.programs / "finetune_zero3", "--version"], check=True, stdout=subprocess.PIPE, text=True)
        version = re.search(r"\d+\.\d+\.\d+\S*", said.stdout).group().encode()
        other = version[:-1] + (b"8" if version.endswith(b"9") else b"9")
        program.write_bytes((self.programs / "finetune_zero3").read_bytes().replace(version + b"\0", other + b"\0"))
        program.chmod(0o755)
        return self.fails(self.start(lambda host, command: self.hosts.command(host, [program, *command[1:]] if host else command)),
                          [4, 4], f"version of Tandem differs: (?=.*{re.escape(other.decode())})(?=.*host-a).*host-b")

    def other_files(self, pattern, **files):
        other = self.command("run", **files)
        return self.fails(self.start(lambda host, command: self.hosts.command(host, other if host else command)), [4, 4], pattern)

    def other_weights(self):
        return self.other_files(r"weights differ: model\.safetensors has the hash \w+ on host host-a, has the hash \w+ on host host-b",
                                model=self.make_model("weights", 2))

    def another_model(self):
        return self.other_files("differs: rank 0 .on host host-a.*rank 1 .on host host-b",
                                model=self.make_model("larger", 1, MODEL.replace("--hidden 32", "--hidden 64")))

    def other_data(self):
        data = json.loads((ROOT / "examples/demo/instructions.json").read_text())
        data[0]["output"] += " indeed"
        (self.folder / "data.json").write_text(json.dumps(data))
        return self.other_files("the data differs: rank 0 .on host host-a.*rank 1 .on host host-b", data=self.folder / "data.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="cells whose name contains this")
    arguments = parser.parse_args()
    names = ["listeners", "strangers", "a clock that is off", "a name that is not known", "a name of the loopback",
             "a port that is taken", "packets dropped before the meeting", "packets dropped after the meeting",
             "another version", "other weights", "another model", "other data"]
    names = [name for name in names if (not arguments.quick or name in QUICK) and (not arguments.only or arguments.only in name)]
    begun = time.monotonic()
    failed = []
    with Hosts(2) as hosts, scratch() as folder:
        if hosts.problem:
            print(f"skipped: no namespaces as hosts: {hosts.problem}")
            return 77
        meeting = Meeting(arguments.bin.resolve(), hosts, Path(folder))
        for number, name in enumerate(names):
            cell_begun = time.monotonic()
            faults = getattr(meeting, name.replace(" ", "_"))()
            if left := meeting.left():
                faults.append(f"processes are left: {left}")
                for pid in left:
                    os.kill(pid, 9)
            print(f"{number + 1:3d}/{len(names)} {name}: {'; '.join(faults) or 'as it must be'}, "
                  f"{time.monotonic() - cell_begun:.1f} s", flush=True)
            failed += [{"cell": name, "fault": fault} for fault in faults[:1]]
    print(json.dumps({"drill": "meeting", "cells": len(names), "passed": len(names) - len(failed), "strangers": GARBAGE,
                      "failed": failed, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
