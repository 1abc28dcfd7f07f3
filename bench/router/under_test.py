"""Tests routers in a network namespace of this machine by `netstage test router`."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
TIMEOUT = 30
# Exit code of a test in which the tester fell short; the record has the details.
VOID = 5


class Bench:
    """Namespaces of a tester and a router with two links between them, removed on exit."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path):
        self.program, self.folder = program, folder
        self.tester, self.router = f"tester-{os.getpid()}", f"router-{os.getpid()}"

    def __enter__(self):
        for name in (self.tester, self.router):
            run("ip", "netns", "add", name)
        for port in (0, 1):
            run("ip", "link", "add", f"west{port}", "netns", self.tester, "address", f"02:00:00:00:00:{2 * port:02x}",
                "mtu", "1512", "type", "veth", "peer", "name", f"eth{port}", "netns", self.router,
                "address", f"02:00:00:00:00:{2 * port + 1:02x}", "mtu", "1512")
            for name, link in ((self.tester, f"west{port}"), (self.router, f"eth{port}")):
                # Between veth pairs, frames sent by a program in the kernel arrive only if GRO is enabled.
                run("ip", "netns", "exec", name, "ethtool", "-K", link, "tx", "off", "gro", "on")
                run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", self.router, "address", "add", f"192.0.2.{4 * port + 1}/30", "dev", f"eth{port}")
        run("ip", "-n", self.router, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in (self.tester, self.router):
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    def test(self, router: str, operations: list, options, record: pathlib.Path, start, model="uniform", networks=50_000, by="manual"):
        """Runs the paper's profile; `start` starts the router with the configuration printed by the tester."""
        quoted = ", ".join(f'"{operation}"' for operation in operations)
        sizes = f"sizes = [{', '.join(f'{size!r}' for size in options.sizes)}]\n" if options.sizes else ""
        text = (f'[tester]\nrouter = "{router}"\nfrom = ["left"]\nto = ["right"]\noperations = [{quoted}]\n{sizes}'
                f'trial = "{options.trial} s"\nsearch = "{options.search} s"\nstep = "{options.step} Mbit/s"\nmodel = "{model}"\n')
        for port, name in enumerate(("left", "right")):
            text += (f'[port.{name}]\ninterface = "west{port}"\naddress = "192.0.2.{4 * port + 2}/30"\n'
                     f'router = "192.0.2.{4 * port + 1}"\nrouter_interface = "eth{port}"\n')
        text += f'[routes]\ncount = {networks}\n[labels]\nby = "{by}"\n'
        configuration = self.folder / f"{record.name}.toml"
        configuration.write_text(text)
        shutil.rmtree(record, ignore_errors=True)
        with start(self, configuration):
            done = subprocess.run(["ip", "netns", "exec", self.tester, self.program, "test", "router", configuration,
                                   "--out", record, "--retries", "8"], check=False)
        if done.returncode not in (0, VOID):
            sys.exit(f"{router}: netstage exited with {done.returncode}")

    def setup(self, configuration: pathlib.Path, kind: str) -> str:
        """Returns the routes and labels for a router of this kind."""
        return run(self.program, "test", "router", configuration, "--setup", kind)


@contextlib.contextmanager
def netstage(bench: Bench, configuration: pathlib.Path, tables=""):
    (bench.folder / "fib.txt").write_text(bench.setup(configuration, "netstage"))
    socket = bench.folder / "router.sock"
    (bench.folder / "router.toml").write_text(
        '[router]\ninterfaces = ["eth0", "eth1"]\nmpls = ["eth0", "eth1"]\nroutes = "fib.txt"\nfast_path = "xdp"\n'
        f'control = "{socket}"\n{tables}')
    command = ["ip", "netns", "exec", bench.router, bench.program, "router", "run", bench.folder / "router.toml"]
    with process(command, bench.folder / "router.log"):
        until(lambda: subprocess.run([bench.program, "router", "show", "--socket", socket], capture_output=True,
                                     check=False).returncode == 0, "the router to answer")
        yield


def netstage_rsvp(bench: Bench, configuration: pathlib.Path):
    """Starts netstage's router, which signals labels with the tester."""
    return netstage(bench, configuration, bench.setup(configuration, "netstage-rsvp"))


@contextlib.contextmanager
def linux(bench: Bench, configuration: pathlib.Path):
    run("ip", "netns", "exec", bench.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    subprocess.run(["ip", "-n", bench.router, "-batch", "-"], input=bench.setup(configuration, "linux"), text=True, check=True)
    yield
    run("ip", "netns", "exec", bench.router, "sysctl", "-qw", "net.ipv4.ip_forward=0")


@contextlib.contextmanager
def open_vswitch(bench: Bench, configuration: pathlib.Path):
    """Starts Open vSwitch of Debian with its user-space data path on AF_PACKET."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=bench.folder))
    environment = {name: str(folder) for name in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")}
    inside = ["ip", "netns", "exec", bench.router, "env", *(f"{name}={value}" for name, value in environment.items())]
    socket = f"unix:{folder}/db.sock"
    run(*inside, "ovsdb-tool", "create", f"{folder}/conf.db", OVS_SCHEMA)
    flows = bench.setup(configuration, "ovs")
    for port in (1, 2):
        flows = flows.replace(f"ROUTER-MAC-{port},", f"02:00:00:00:00:{2 * port - 1:02x},")
        flows = flows.replace(f"TESTER-MAC-{port},", f"02:00:00:00:00:{2 * port - 2:02x},")
    (folder / "flows").write_text(flows)
    with process([*inside, "ovsdb-server", f"{folder}/conf.db", f"--remote=p{socket}"], folder / "ovsdb.log"):
        until((folder / "db.sock").exists, "the switch's database")
        with process([*inside, "ovs-vswitchd", socket], folder / "ovs.log"):
            # Port numbers by name: left is 1, right is 2.
            run(*inside, "ovs-vsctl", f"--db={socket}", "--timeout=10", "add-br", "br0", "--", "set", "bridge", "br0",
                "datapath_type=netdev", "fail-mode=secure", *(
                    word for port in (0, 1) for word in
                    ("--", "add-port", "br0", f"eth{port}", "--", "set", "interface", f"eth{port}", f"ofport_request={port + 1}")))
            run(*inside, "ovs-ofctl", "-O", "OpenFlow13", "add-flows", "br0", f"{folder}/flows")
            yield


@contextlib.contextmanager
def process(command: list, log: pathlib.Path):
    with open(log, "w") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            yield
        finally:
            started.terminate()
            try:
                started.wait(timeout=10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def until(is_ready, what: str):
    end = time.monotonic() + TIMEOUT
    while not is_ready():
        if time.monotonic() > end:
            sys.exit(f"timeout after {TIMEOUT} s waiting for {what}")
        time.sleep(0.1)


def run(*command) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout
