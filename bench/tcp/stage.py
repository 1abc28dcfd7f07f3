"""Two namespaces, a link between them on which every segment and every ACK is a packet, and iperf3 at its ends."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from pair import Pair  # noqa: E402

RECEIVER, PORT = Pair.addresses[1], "5201"
LIMIT = 20


def wait(reason: str, done):
    """Until something is so."""
    deadline = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > deadline:
            sys.exit(reason)
        time.sleep(0.02)


class Stage(Pair):
    def __enter__(self):
        super().__enter__()
        for side, device in enumerate(self.devices):
            self.run(side, "ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off", stdout=subprocess.DEVNULL)
        # An ACK for each segment: the more there are, the harder it is to lose no record.
        for side, device in enumerate(self.devices):
            self.run(side, "ip", "route", "replace", "10.99.0.0/24", "dev", device, "quickack", "1")
            self.run(side, "sysctl", "-qe", "-w", "net.ipv4.tcp_backlog_ack_defer=0")
            # A flow begins as the one before did, and not where that ended.
            self.run(side, "sysctl", "-qe", "-w", "net.ipv4.tcp_no_metrics_save=1")
        return self

    @contextlib.contextmanager
    def transfer(self, *options):
        """Flows, as long as something is looked at. An iperf3 server of their own, as one serves a client at a time."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = self.start(1, "iperf3", "-s", "-1", **quiet)
        client = None
        try:
            wait("iperf3 -s does not listen", lambda: f":{PORT}" in self.run(
                1, "ss", "-ltn", capture_output=True, text=True).stdout)
            client = self.start(0, "iperf3", "-c", RECEIVER, "-t", "3600", "-C", "cubic", *options, **quiet)
            before = self.received()
            wait("iperf3 sends nothing", lambda: self.received() > before + 1_000_000)
            # Windows open.
            time.sleep(1)
            yield client
            if client.poll() is not None:
                sys.exit("iperf3 has ended before it was told to")
        finally:
            for process in filter(None, [client, server]):
                process.kill()
                process.wait()

    def received(self) -> int:
        """Bytes that came to the far end."""
        lines = pathlib.Path(f"/proc/{self.holders[1].pid}/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.strip().startswith(f"{self.devices[1]}:"))
        return int(line.split(":")[1].split()[0])

    def rate(self, seconds: float) -> float:
        """Bytes a second, for so long."""
        before, start = self.received(), time.monotonic()
        time.sleep(seconds)
        return (self.received() - before) / (time.monotonic() - start)
