"""Two connected network namespaces, which exist as long as two sleeping processes."""

import os
import subprocess
import time


class Pair:
    """The namespaces are numbered 0 and 1; `devices` and `addresses` are those of their link ends."""

    devices = ("left0", "right0")
    addresses = ("10.99.0.1", "10.99.0.2")

    def __enter__(self):
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(2)]
        own = os.readlink("/proc/self/ns/net")
        for holder in self.holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.01)
        left, right = self.devices
        self.run(0, "ip", "link", "add", left, "type", "veth", "peer", "name", right,
                 "netns", str(self.holders[1].pid))
        for side, (device, address) in enumerate(zip(self.devices, self.addresses)):
            self.run(side, "ip", "address", "add", f"{address}/24", "dev", device)
            self.run(side, "ip", "link", "set", "lo", "up")
            self.run(side, "ip", "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()

    def command(self, side: int, *command: str) -> list:
        return ["nsenter", f"--net=/proc/{self.holders[side].pid}/ns/net", *command]

    def run(self, side: int, *command: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(side, *command), check=True, **options)

    def start(self, side: int, *command: str, **options) -> subprocess.Popen:
        return subprocess.Popen(self.command(side, *command), **options)
