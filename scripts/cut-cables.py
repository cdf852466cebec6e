#!/usr/bin/env python3
"""How long clients get paths over a cable that was cut: cables between switches of a fat tree are
cut one after the other.

usage: scripts/cut-cables.py [--hosts N] [--cables N] [--engine NAME] [--programs DIR] [--seed N]
                             [--pause SECONDS]

Starts ibfabric, ibsm and one ibsa, draws cables between switches, and cuts one every 2.3 s: the
manager holds down traps that come faster for long. Prints percentiles of the milliseconds from the
command until the manager logs that the link is down, until it logs SUBNET UP, and until the
responder serves tables without the link; and of the parts of the sweep, as its report has them.
CPU is what ibsm used in the time from one cut to the next, in steps of 10 ms; it depends least on
what else the machine does. Ends with status 1 if a cut was not served until the next.
"""
import argparse
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAUSE_S = 2.3
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PARTS = ["discovered in", "LIDs and P_Keys in", "routed in", "LFT blocks in", "links in"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def logged_at(line):
    """When a line was logged, in seconds since the epoch."""
    stamp = re.sub(r"\x1b\[[0-9;]*m", "", line).split()[0]
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def duration(line, words):
    """The milliseconds behind these words."""
    if found := re.search(re.escape(words) + r" ([0-9.]+) (ms|s)\b", line):
        return float(found[1]) * (1000 if found[2] == "s" else 1)
    return None


class Site:
    """A fabric, its manager and a responder."""

    def __init__(self, directory, options):
        self.directory, self.programs, self.running = directory, options.programs, []
        self.socket = f"cut-{os.getpid()}"
        publish, listen = free_port(), free_port()
        subprocess.run([self.program("ibfabric"), "generate", "fat-tree", "--levels", "3",
                        "--radix", str(options.radix), "--hosts", str(options.hosts), "--seed",
                        "1", "-o", self.path("net")], check=True, stdout=subprocess.DEVNULL)
        self.start("ibfabric", "serve", self.path("net"), "--socket", self.socket)
        self.wait("ibfabric", "ready")
        self.start("ibsa", "--sm", f"http://127.0.0.1:{publish}", "--transport", "udp",
                   "--listen", f"127.0.0.1:{listen}")
        self.start("ibsm", "--transport", "ibsim", "--socket", self.socket, "--publish",
                   f"127.0.0.1:{publish}", "--state-dir", self.path("state"), "-R",
                   options.engine)
        self.wait("ibsm", "SUBNET UP")
        self.wait("ibsa", "serving generation")

    def path(self, name):
        return os.path.join(self.directory, name)

    def program(self, name):
        return os.path.join(self.programs, name)

    def start(self, name, *arguments):
        with open(self.path(name + ".log"), "ab") as log:
            self.running.append(subprocess.Popen(
                [self.program(name), *arguments], stdout=log, stderr=log,
                env={**os.environ, "NO_COLOR": "1"}, cwd=self.directory))

    def log(self, name):
        with open(self.path(name + ".log"), encoding="utf-8", errors="replace") as log:
            return log.read().splitlines()

    def wait(self, name, words, limit_s=300):
        end = time.time() + limit_s
        while not any(words in line for line in self.log(name)):
            if time.time() > end:
                sys.exit(f"cut-cables: {name} did not log '{words}' within {limit_s} s")
            time.sleep(0.05)

    def cables(self):
        """One end of each cable between switches: name and port."""
        ends, name = [], None
        for line in open(self.path("net"), encoding="utf-8"):
            if found := re.match(r'(Switch|Ca)\s+\d+\s+"[^"]+"\s+# "([^"]+)"', line):
                name = found[2] if found[1] == "Switch" else None
            elif name and (found := re.match(r'\[(\d+)\]\s+"S-[^"]*"\[\d+\].*# "([^"]+)"', line)):
                if name < found[2]:
                    ends.append((name, int(found[1])))
        return ends

    def cut(self, name, port):
        """Cuts a cable; returns when. The start of another process would take milliseconds."""
        with socket.socket(socket.AF_UNIX) as console:
            console.connect(f"\0{self.socket}:console\0".encode())
            at = time.time()
            console.sendall(f"link-down {name} {port}\n".encode())
            console.shutdown(socket.SHUT_WR)
            while console.recv(4096):
                pass
        return at

    def cpu_ms(self, name):
        """CPU time that a program has used, in milliseconds."""
        pid = next(run.pid for run in self.running if os.path.basename(run.args[0]) == name)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / TICKS_A_SECOND

    def end(self):
        for program in reversed(self.running):
            program.send_signal(signal.SIGTERM)
            program.wait()


def measure(site, name, port, pause_s):
    """The parts of one cut, in milliseconds."""
    cpu = site.cpu_ms("ibsm")
    before = {program: len(site.log(program)) for program in ("ibsm", "ibsa")}
    at = site.cut(name, port)
    time.sleep(pause_s)
    cpu = site.cpu_ms("ibsm") - cpu
    manager, responder = (site.log(program)[before[program]:] for program in ("ibsm", "ibsa"))
    down = [line for line in manager if "link down:" in line]
    up = [line for line in manager if "SUBNET UP" in line]
    served = [line for line in responder if "serving generation" in line]
    if not (down and up and served):
        return {}
    parts = {"CPU of ibsm": cpu, "link down logged": (logged_at(down[0]) - at) * 1000}
    parts |= {words: took for words in PARTS if (took := duration(up[0], words)) is not None}
    if found := re.search(r"; \d+ SMPs, ([0-9.]+) (ms|s) in all", up[0]):
        parts["sweep in all"] = float(found[1]) * (1000 if found[2] == "s" else 1)
    parts["SUBNET UP logged"] = (logged_at(up[0]) - at) * 1000
    parts["tables built in"] = duration(served[0], "tables built in")
    parts["served"] = (logged_at(served[0]) - at) * 1000
    blocks = re.search(r"(\d+) LFT blocks", up[0])
    parts["(LFT blocks)"] = float(blocks[1])
    parts["(further sweeps with changes)"] = float(len(up) - 1)
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--radix", type=int, default=40)
    parser.add_argument("--cables", type=int, default=100)
    parser.add_argument("--engine", default="minhop")
    parser.add_argument("--programs", default=f"{ROOT}/target/release")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=PAUSE_S)
    options = parser.parse_args()
    options.programs = os.path.abspath(options.programs)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cut-cables.") as directory:
        site = Site(directory, options)
        try:
            time.sleep(options.pause)
            cables = site.cables()
            random.Random(options.seed).shuffle(cables)
            cuts = [measure(site, *cable, options.pause) for cable in cables[:options.cables]]
        finally:
            site.end()
    served = [parts for parts in cuts if parts]
    print(f"{options.hosts} hosts, {options.engine}, {len(cuts)} cables, {len(served)} served "
          f"within {options.pause} s; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(f"{'ms':<30} {'p1':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'most':>8}")
    for name in served[0] if served else []:
        values = sorted(parts[name] for parts in served if parts.get(name) is not None)
        at = [values[max(math.ceil(len(values) * share) - 1, 0)] for share in (.01, .5, .9, .99, 1)]
        print(f"{name:<30} " + " ".join(f"{value:8.0f}" for value in at))
    sys.exit(len(served) < len(cuts))


if __name__ == "__main__":
    main()
