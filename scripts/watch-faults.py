#!/usr/bin/env python3
"""Nine faults in a simulated fabric, and after how many seconds an operator sees each.

usage: scripts/watch-faults.py [--hosts N] [--programs DIR] [FAULT...]

Starts ibfabric, ibsm with TLS, a baseline and a history on a small disk, two responders, and
Prometheus with the rules of docs/grafana/alerts.yml. Then, one after the other, puts each fault in
and prints after how many seconds it is in `ibsmctl status`, `ibsmctl problems`, what the page shows
(/api/v1/problems), /metrics, and fires an alert; takes it out, and prints when it is over. Last, it
restarts ibsm and looks for each fault in the history. Ends with status 1 if something is missing or
took more than a minute.

Needs root (a file system in memory), openssl and Prometheus: apt-get install prometheus.
"""
import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT_S = 60
SURFACES = ["status", "problems", "page", "metrics", "alert"]
# Problems that remain for a time after the last event, so that they are seen.
LINGER = {"flapping": "10 min", "bit errors": "5 min"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url):
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except OSError:
        return ""


class Site:
    """A fabric, its manager and responders, and Prometheus."""

    def __init__(self, directory, programs, hosts):
        self.directory, self.programs, self.running = directory, programs, {}
        self.socket = f"watch-{os.getpid()}"
        self.publish, self.http, self.prometheus = free_port(), free_port(), free_port()
        self.responders = [free_port(), free_port()]
        levels, radix = (2, 64) if hosts <= 2048 else (3, 40)
        self.run("ibfabric", "generate", "fat-tree", "--levels", levels, "--radix", radix,
                 "--hosts", hosts, "--seed", 5, "-o", self.path("net"))
        self.links = self.read_links()
        subprocess.run([f"{ROOT}/scripts/make-certs.sh", self.path("certs")], check=True,
                       stdout=subprocess.DEVNULL)
        os.mkdir(self.path("state"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs",
                        self.path("state")], check=True)
        self.write("partitions.conf", "Default=0x7fff, ipoib : ALL=full;\n")
        self.write("conf", "perfmgr TRUE\nperfmgr_sweep_time_s 30\npartition_config_file "
                   + self.path("partitions.conf") + "\n")
        targets = [f"127.0.0.1:{port}" for port in [self.http, *self.responders]]
        self.write("prometheus.yml", json.dumps({
            "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
            "rule_files": [f"{ROOT}/docs/grafana/alerts.yml"],
            "scrape_configs": [{"job_name": "ib", "static_configs": [{"targets": targets}]}],
        }))

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read_links(self):
        """Cables by node name and port."""
        names, links, node = {}, [], None
        for line in open(self.path("net"), encoding="utf-8"):
            if found := re.match(r'(?:Switch|Ca)\s+\d+\s+"([^"]+)"\s+# "([^"]+)"', line):
                node = found[1]
                names[node] = found[2]
            elif found := re.match(r'\[(\d+)\][^"]*"([^"]+)"\[(\d+)\]', line):
                links.append((node, int(found[1]), found[2], int(found[3])))
        return {(names[a], p): (names[b], q) for a, p, b, q in links}

    def tls(self, who):
        where = self.path("certs")
        return ["--tls-ca", f"{where}/ca.pem", "--tls-cert", f"{where}/{who}.pem",
                "--tls-key", f"{where}/{who}.key"]

    def run(self, program, *arguments):
        command = [os.path.join(self.programs, program), *map(str, arguments)]
        where = self.path("certs")
        settings = {"IBSM_SM": f"https://127.0.0.1:{self.publish}",
                    "IBSM_TLS_CA": f"{where}/ca.pem", "IBSM_TLS_CERT": f"{where}/admin.pem",
                    "IBSM_TLS_KEY": f"{where}/admin.key"}
        return subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**os.environ, **settings}).stdout

    def ctl(self, *arguments):
        return self.run("ibfabric", "ctl", "--socket", self.socket, *arguments)

    def ask(self, *arguments):
        return self.run("ibsmctl", *arguments)

    def start(self, name, *command):
        log = open(self.path(f"{name}.log"), "a", encoding="utf-8")
        self.running[name] = subprocess.Popen([str(part) for part in command], stdout=log,
                                              stderr=log, cwd=self.directory)

    def start_manager(self):
        self.start("ibsm", f"{self.programs}/ibsm", "-F", self.path("conf"), "--transport", "ibsim",
                   "--socket", self.socket, "--node", "node00001 HCA-1", "--publish",
                   f"127.0.0.1:{self.publish}", "--http", f"127.0.0.1:{self.http}", "--state-dir",
                   self.path("state"), "--subnet-label", "rail1", *self.tls("sm"))
        ready = f"http://127.0.0.1:{self.http}/readyz"
        self.wait("ibsm is up", lambda: "subnet is up" in get(ready))

    def start_all(self):
        self.start("ibfabric", f"{self.programs}/ibfabric", "serve", self.path("net"), "--socket",
                   self.socket)
        self.wait("the fabric is served", lambda: "ready" in open(self.path("ibfabric.log")).read())
        self.start_manager()
        for i, port in enumerate(self.responders):
            self.start(f"ibsa-{i}", f"{self.programs}/ibsa", "--sm",
                       f"https://127.0.0.1:{self.publish}", "--transport", "udp", "--name",
                       f"ibsa-{i}", "--cache-dir", self.path(f"cache-{i}"), "--http",
                       f"127.0.0.1:{port}", "--subnet-label", "rail1", *self.tls("responder"))
        self.start("prometheus", "prometheus", f"--config.file={self.path('prometheus.yml')}",
                   f"--storage.tsdb.path={self.path('tsdb')}",
                   f"--web.listen-address=127.0.0.1:{self.prometheus}")
        self.wait("nothing is wrong", lambda: not self.problems(notices=False))
        self.ask("baseline", "take")
        time.sleep(15)

    def wait(self, what, is_so, patience=120):
        end = time.time() + patience
        while not is_so():
            if time.time() > end:
                sys.exit(f"watch-faults: after {patience} s it is not so that {what}; "
                         f"logs are in {self.directory}")
            time.sleep(0.5)

    def problems(self, notices=True):
        try:
            found = json.loads(self.ask("problems", "--json"))["problems"]
        except (ValueError, KeyError):
            return []
        return [one for one in found if notices or one["severity"] != "notice"]

    def firing(self):
        try:
            alerts = json.loads(get(f"http://127.0.0.1:{self.prometheus}/api/v1/alerts"))
        except ValueError:
            return []
        return [one["labels"] for one in alerts["data"]["alerts"] if one["state"] == "firing"]

    def shown(self, kinds, alerts):
        """How many problems of these kinds each surface shows, or how many alerts fire."""
        page = json.loads(get(f"http://127.0.0.1:{self.http}/api/v1/problems") or "{}")
        metrics = get(f"http://127.0.0.1:{self.http}/metrics").splitlines()
        gauges = [line for line in metrics if line.startswith("ibsm_problems{")
                  and any(f'kind="{kind}"' in line for kind in kinds)]
        status = self.ask("status")
        return {
            "status": sum(status.count(f"[{kind}") for kind in kinds),
            "problems": sum(one["kind"] in kinds for one in self.problems()),
            "page": sum(one["kind"] in kinds for one in page.get("problems", [])),
            "metrics": sum(float(line.split()[-1]) for line in gauges),
            "alert": sum(one["alertname"] in alerts or one.get("kind") in kinds
                         for one in self.firing()),
        }

    def until(self, kinds, alerts, began, is_so):
        """Seconds from `began` until it is so of what each surface shows."""
        took = {}
        while len(took) < len(SURFACES) and time.time() - began < 3 * LIMIT_S:
            for surface, number in self.shown(kinds, alerts).items():
                if surface not in took and is_so(surface, number):
                    took[surface] = time.time() - began
            time.sleep(0.5)
        return took

    def stop(self):
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running.values():
            process.wait()
        subprocess.run(["umount", self.path("state")], check=False)


def faults(site):
    """Each fault: its kinds of problems, its alerts, how it is put in, and how it is mended."""
    link = site.links
    leaf, up = "leaf001", max(port for node, port in link if node == "leaf001")
    errors = (leaf, up, "SymbolErrorCounter")
    hosts = ["node00040 HCA-1", "node00041 HCA-1"]
    ends = [link[(host, 1)] for host in hosts]
    state = site.path("state")

    def swap(to):
        for host in hosts:
            site.ctl("unplug", host, 1)
        for host, (switch, port) in zip(hosts, to):
            site.ctl("plug", host, 1, switch, port)

    def flap():
        for _ in range(5):
            site.ctl("link-down", leaf, up)
            time.sleep(1.5)
            site.ctl("link-up", leaf, up)
            time.sleep(1.5)

    def partitions(text):
        site.write("partitions.conf", text)
        site.running["ibsm"].send_signal(signal.SIGHUP)

    def fill():
        with open(f"{state}/full", "wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                pass
        # Something that is to be kept.
        site.ctl("link-down", leaf, up)

    def drain():
        os.remove(f"{state}/full")
        site.ctl("link-up", leaf, up)

    def certificate(days):
        where = site.path("certs")
        for name in ["sm.pem", "sm.key"]:
            os.remove(f"{where}/{name}")
        subprocess.run([f"{ROOT}/scripts/make-certs.sh", where], check=True,
                       env={**os.environ, "DAYS": str(days)}, stdout=subprocess.DEVNULL)
        site.running["ibsm"].send_signal(signal.SIGHUP)

    good = open(site.path("partitions.conf"), encoding="utf-8").read()
    responder = "ibsa-1"
    return {
        "slow link": (["link_degraded"], ["LinksDegraded"],
                      lambda: site.ctl("degrade", leaf, up, "1xHDR"),
                      lambda: site.ctl("degrade", leaf, up, "off")),
        "missing spine": (["switch_missing"], ["SwitchesMissing"],
                          lambda: site.ctl("node-down", "spine001"),
                          lambda: site.ctl("node-up", "spine001")),
        "swapped cables": (["cable_moved"], ["CablesMoved"],
                           lambda: swap(ends[::-1]), lambda: swap(ends)),
        "bit errors": (["port_errors"], ["PortErrors"],
                       lambda: site.ctl("count-rate", *errors, 50),
                       lambda: site.ctl("count-rate", *errors, 0)),
        "flapping": (["link_flapping"], ["LinksFlapping"], flap, lambda: None),
        "wrong partition": (["file_refused"], ["PolicyFileRefused"],
                            lambda: partitions(good + "Blue=0x8xyz : ALL;\n"),
                            lambda: partitions(good)),
        "hung responder": (["responder_hung"], ["ResponderHung"],
                           lambda: site.running[responder].send_signal(signal.SIGSTOP),
                           lambda: site.running[responder].send_signal(signal.SIGCONT)),
        "full disk": (["state_file_behind", "history_unwritable", "registry_cannot_commit"],
                      ["StateFilesBehind", "RegistryCannotCommit"], fill, drain),
        "expiring certificate": (["certificate"], ["Certificate"],
                                 lambda: certificate(3), lambda: certificate(825)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=2000, help="hosts of the fabric [2000]")
    parser.add_argument("--programs", default=f"{ROOT}/target/debug",
                        help="where ibfabric, ibsm, ibsa and ibsmctl are [target/debug]")
    parser.add_argument("fault", nargs="*", help="such as 'slow link' [all]")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="watch-faults-")
    site, is_good = Site(directory, options.programs, options.hosts), True
    try:
        site.start_all()
        print(f"{options.hosts} hosts; logs in {directory}\n")
        print(f"{'fault':<21}" + "".join(f"{one:>10}" for one in SURFACES)
              + f"{'over':>10}   seconds")
        put_in = {}
        for name, (kinds, alerts, put, mend) in faults(site).items():
            if options.fault and name not in options.fault:
                continue
            # Others of the kind may be there; an alert that fires already stays.
            before = {**site.shown(kinds, alerts), "alert": 0}
            began = time.time()
            put_in[name] = (kinds, int(began * 1000))
            put()
            found = site.until(kinds, alerts, began, lambda at, number: number > before[at])
            began = time.time()
            mend()
            shown = [found.get(surface) for surface in SURFACES]
            is_good &= None not in shown and max(shown) <= LIMIT_S
            if name in LINGER:
                shown.append(LINGER[name])
            else:
                over = site.until(kinds, alerts, began,
                                  lambda at, number: number <= before[at])
                shown.append(max(over.values()) if len(over) == len(SURFACES) else None)
                is_good &= shown[-1] is not None
            words = ["missing" if one is None else one if isinstance(one, str) else f"{one:.1f}"
                     for one in shown]
            print(f"{name:<21}" + "".join(f"{word:>10}" for word in words), flush=True)
        site.running["ibsm"].terminate()
        site.running["ibsm"].wait()
        site.start_manager()
        events = [json.loads(line) for line in site.ask(
            "events", "--since", "2h", "--kind", "problem_opened", "--json").splitlines()]
        print()
        for name, (kinds, at) in put_in.items():
            times = [event["time_ms"] - at for event in events
                     if event["fields"]["problem"] in kinds]
            near = [after for after in times if -1000 <= after <= LIMIT_S * 1000]
            is_good &= bool(near)
            what = f"{near[0] / 1000:.1f} s after it was put in" if near else "missing"
            print(f"{name:<21} in the history after a restart: {what}")
    finally:
        site.stop()
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
