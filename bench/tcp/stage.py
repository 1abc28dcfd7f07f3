"""Two connected namespaces, and traffic between them."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from pair import Pair  # noqa: E402

RECEIVER, PORT = Pair.addresses[1], "5201"
LIMIT = 20
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def wait(reason: str, done):
    """Waits until `done` returns true; exits with `reason` after the limit."""
    deadline = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > deadline:
            sys.exit(reason)
        time.sleep(0.02)


def end(process):
    """Interrupts a session of processes, and kills it after a timeout."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Stage(Pair):
    """Without segmentation by devices (`cuts`), every segment and every ACK is a packet; with a rate, the line is the limit
    instead of a processor."""

    def __init__(self, cuts: bool, rate: str = ""):
        self.cuts, self.line = cuts, rate

    def __enter__(self):
        super().__enter__()
        for side, device in enumerate(self.devices):
            # A flow must not start with the metrics of the previous one.
            self.run(side, "sysctl", "-qe", "-w", "net.ipv4.tcp_no_metrics_save=1")
            if not self.cuts:
                self.run(side, "ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off", **QUIET)
                # An ACK for each segment: the more ACKs, the harder it is to lose no record.
                self.run(side, "ip", "route", "replace", "10.99.0.0/24", "dev", device, "quickack", "1")
                self.run(side, "sysctl", "-qe", "-w", "net.ipv4.tcp_backlog_ack_defer=0")
        if self.line:
            self.run(0, "tc", "qdisc", "add", "dev", self.devices[0], "root", "tbf", "rate", self.line,
                     "burst", "256kb", "limit", "1mb")
        return self

    def listens(self) -> bool:
        return f":{PORT}" in self.run(1, "ss", "-ltn", capture_output=True, text=True).stdout

    @contextlib.contextmanager
    def sending(self, server: list, client: list, clients: int = 1):
        """Runs flows during the measurement."""
        processes = [self.start(1, *server, **QUIET, start_new_session=True)]
        try:
            wait(f"timeout waiting for {server[0]} to listen", self.listens)
            before = self.received()
            processes += [self.start(0, *client, **QUIET, start_new_session=True) for _ in range(clients)]
            wait(f"timeout waiting for {client[0]} to send", lambda: self.received() > before + 1_000_000)
            # Let the windows open.
            time.sleep(1)
            yield
            if any(process.poll() is not None for process in processes):
                sys.exit(f"{client[0]} ended early")
        finally:
            for process in reversed(processes):
                end(process)

    def transfer(self, streams: int):
        """Runs streams from left to right. Each side is pinned to a processor: an observer that makes the scheduler move
        them would change more than it costs."""
        return self.sending(["taskset", "-c", "1", "iperf3", "-s", "-1"],
                            ["taskset", "-c", "0", "iperf3", "-c", RECEIVER, "-t", "3600", "-C", "cubic",
                             "-P", str(streams)])

    def exchange(self, connections: int):
        """Runs connections with constant traffic of small segments in both directions: each segment arrives at a host with
        data in flight."""
        options = "mss=200,sndbuf=131072,rcvbuf=131072"
        both_ways = ["socat", "-b", "65536"]
        endless = "/dev/zero!!/dev/null"
        return self.sending([*both_ways, f"TCP-LISTEN:{PORT},fork,reuseaddr,{options}", endless],
                            [*both_ways, f"TCP:{RECEIVER}:{PORT},{options}", endless], connections)

    def received(self) -> int:
        """Returns the bytes received at the right end."""
        lines = pathlib.Path(f"/proc/{self.holders[1].pid}/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.strip().startswith(f"{self.devices[1]}:"))
        return int(line.split(":")[1].split()[0])

    def rate(self, seconds: float) -> float:
        """Measures the bytes per second during this time."""
        before, start = self.received(), time.monotonic()
        time.sleep(seconds)
        return (self.received() - before) / (time.monotonic() - start)
