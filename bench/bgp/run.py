#!/usr/bin/env python3
"""Measures routes from BGP sessions to another, through BIRD, FRR, GoBGP or OpenBGPD, and without a router.

Each router runs in a separate network namespace, with the injectors (AS 65001, 65011, ...) and the sink (AS 65002) on other
addresses of its loopback interface. Needs root and the packages of packages.txt. Writes docs/results/bgp.md from results.md.
"""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from results import Description  # noqa: E402

ADDRESSES = {
    "ipv4": ("192.0.2.1", "192.0.2.2", "192.0.2.9", 24),
    "ipv6": ("2001:db8::1", "2001:db8::2", "2001:db8::9", 64),
}


def bird(folder, family, peers, router):
    channel = "ipv6" if family == "ipv6" else "ipv4"
    sessions = "".join(
        f"""
protocol bgp from{number} {{
    local {router} as 65000;
    neighbor {peer} as {number};
    multihop;
    {channel} {{ import all; export where source = RTS_BGP; next hop keep; }};
}}"""
        for peer, number in peers
    )
    # A static route makes next hops reachable; it is not announced.
    near = "2001:db8::/64" if family == "ipv6" else "192.0.2.0/24"
    reachable = f"protocol static {{ {channel}; route {near} blackhole; }}"
    text = f"router id 192.0.2.9;\nprotocol device {{ }}\n{reachable}\n{sessions}\n"
    (folder / "bird.conf").write_text(text)
    return ["bird", "-f", "-c", folder / "bird.conf", "-s", folder / "bird.ctl", "-P", folder / "bird.pid"]


def frr(folder, family, peers, router):
    afi = {"ipv6": "ipv6 unicast", "labelled": "ipv4 labeled-unicast", "vpnv4": "ipv4 vpn"}.get(family, "ipv4 unicast")
    lines = ["router bgp 65000", " bgp router-id 192.0.2.9", " no bgp ebgp-requires-policy"]
    lines += [" no bgp default ipv4-unicast", " no bgp network import-check"]
    for peer, number in peers:
        lines += [f" neighbor {peer} remote-as {number}", f" neighbor {peer} disable-connected-check"]
        lines += [f" neighbor {peer} advertisement-interval 0"]
    lines += [f" address-family {afi}"]
    for peer, _ in peers:
        lines += [f"  neighbor {peer} activate"]
    lines += [" exit-address-family"]
    (folder / "bgpd.conf").write_text("\n".join(lines) + "\n")
    program = "/usr/lib/frr/bgpd"
    return [program, "-S", "-n", "-Z", "-f", folder / "bgpd.conf", "-i", folder / "bgpd.pid", "-l", router,
            "-P", "0", "--vty_socket", folder, "-z", folder / "zserv.api"]


def gobgp(folder, family, peers, router):
    name = {"ipv6": "ipv6-unicast", "labelled": "ipv4-labelled-unicast", "vpnv4": "l3vpn-ipv4-unicast"}
    name = name.get(family, "ipv4-unicast")
    text = f'[global.config]\nas = 65000\nrouter-id = "192.0.2.9"\nlocal-address-list = ["{router}"]\n'
    for peer, number in peers:
        text += f'[[neighbors]]\n[neighbors.config]\nneighbor-address = "{peer}"\npeer-as = {number}\n'
        text += f'[neighbors.transport.config]\npassive-mode = true\nlocal-address = "{router}"\n'
        text += f'[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = "{name}"\n'
    (folder / "gobgpd.toml").write_text(text)
    return ["gobgpd", "-f", folder / "gobgpd.toml", "--api-hosts", f"unix://{folder}/gobgp.sock", "-l", "error"]


def openbgpd(folder, family, peers, router):
    announce = {"ipv6": "IPv6 unicast", "vpnv4": "IPv4 vpn"}.get(family, "IPv4 unicast")
    text = f"AS 65000\nrouter-id 192.0.2.9\nfib-update no\nlisten on {router}\nsocket \"{folder}/bgpd.sock\"\n"
    for peer, number in peers:
        text += f"neighbor {peer} {{\n remote-as {number}\n local-address {router}\n multihop 2\n"
        text += f" announce {announce}\n passive\n}}\n"
    text += "nexthop qualify via default\nallow from any\nallow to any\n"
    (folder / "bgpd.conf").write_text(text)
    (folder / "bgpd.conf").chmod(0o600)
    return ["/usr/sbin/bgpd", "-d", "-f", folder / "bgpd.conf"]


ROUTERS = {"bird": bird, "frr": frr, "gobgp": gobgp, "openbgpd": openbgpd}
# No router: the sink is the injector's peer.
DIRECT = "direct"


def version(router):
    command = {"bird": ["bird", "--version"], "frr": ["/usr/lib/frr/bgpd", "-v"], "gobgp": ["gobgpd", "--version"],
               "openbgpd": ["/usr/sbin/bgpd", "-V"], DIRECT: ["true"]}[router]
    if not shutil.which(command[0]):
        return None
    answer = subprocess.run(command, capture_output=True, text=True)
    return (answer.stdout + answer.stderr).strip().partition("\n")[0]


def inside():
    """Measures one router in the namespaces; prints one line of JSON."""
    router, program, count, family, injector_count, folder = sys.argv[2:]
    folder = pathlib.Path(folder)
    injector, sink, own, length = ADDRESSES["ipv6" if family == "ipv6" else "ipv4"]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    injectors = [injector] + [injector + str(number) for number in range(1, int(injector_count))]
    peers = [(injector, 65001)] + [(address, 65010 + number) for number, address in enumerate(injectors[1:], 1)]
    for address in (*injectors, sink, own):
        subprocess.run(["ip", "address", "add", f"{address}/{length}", "dev", "lo", "nodad"][: 7 if ":" in address else 6],
                       check=True)
    # Sockets and locks of the installed daemons stay outside.
    for path in ("/run", "/var/run"):
        if not os.path.islink(path):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    os.makedirs("/run/openbgpd", exist_ok=True)
    if router == DIRECT:
        subprocess.run([program, "direct", injector, sink, count, family])
        return
    with open(folder / "log", "w") as log:
        daemon = subprocess.Popen(ROUTERS[router](folder, family, [*peers, (sink, 65002)], own), stdout=log, stderr=log)
        try:
            answer = subprocess.run([program, "through", ",".join(injectors), sink, own, count, family],
                                    capture_output=True, text=True)
            daemon.poll()
            result = json.loads(answer.stdout) if answer.stdout else {"error": answer.stderr.strip()[-200:]}
            if daemon.returncode is not None:
                result = {"error": f"the router ended: {(folder / 'log').read_text()[-300:]}"}
            result["memory_kb"] = peak_memory_kb(daemon.pid)
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
        print(json.dumps(result))


def peak_memory_kb(parent):
    """Returns the sum of the peak memory of a process and its children in kB."""
    total = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if parent in (int(fields["Pid"]), int(fields["PPid"])):
            total += int(fields.get("VmHWM", "0 kB").split()[0])
    return total


def measure(router, program, count, family, injectors):
    with tempfile.TemporaryDirectory(prefix="bgp-") as folder:
        os.chmod(folder, 0o755)
        # The process namespace ends the daemon and its children.
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                   sys.executable, __file__, "inside", router, str(program), str(count), family, str(injectors), folder]
        answer = subprocess.run(command, capture_output=True, text=True)
        try:
            return json.loads(answer.stdout.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            return {"error": answer.stderr.strip()[-300:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/bgp_rates")
    parser.add_argument("--routers", nargs="+", choices=[DIRECT, *ROUTERS], default=[DIRECT, *ROUTERS])
    parser.add_argument("--counts", nargs="+", type=int, default=[50_000, 1_000_000])
    parser.add_argument("--injectors", nargs="+", type=int, choices=range(1, 11), default=[1, 10],
                        help="numbers of sessions that announce the routes; more than one only through a router")
    parser.add_argument("--families", nargs="+", choices=["ipv4", "ipv6", "labelled", "vpnv4"], default=["ipv4"])
    arguments = parser.parse_args()
    program = arguments.program.resolve()
    memory = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    print(memory, flush=True)
    folder = ROOT / "bench/target/bgp"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "bench-bgp.json"
    results = json.loads(file.read_text()) if file.exists() else []
    for router in arguments.routers:
        if version(router) is None:
            print(f"{router}: not installed (see bench/bgp/packages.txt)")
            continue
        for family in arguments.families:
            for count, injectors in itertools.product(arguments.counts, arguments.injectors):
                # Several sessions matter with full tables only.
                if injectors > 1 and (router == DIRECT or count < max(arguments.counts)):
                    continue
                result = measure(router, program, count, family, injectors)
                case = {"router": router, "family": family, "injectors": injectors, "count": count}
                # Results of earlier invocations remain, unless they are of the same case.
                results = [other for other in results if any(other[key] != value for key, value in case.items())]
                results.append({**case, "version": version(router), **result})
                print(json.dumps(results[-1]), flush=True)
    file.write_text(json.dumps(results, indent=1) + "\n")
    (folder / "memory.txt").write_text(memory)
    Description(ROOT / "bench/bgp/results.md", "").write()


if __name__ == "__main__":
    inside() if sys.argv[1:2] == ["inside"] else main()
