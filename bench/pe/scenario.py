#!/usr/bin/env python3
"""Writes the scenario of Figures 11 to 13 for a number of VPNs to standard output.

    scenario.py VPNS [MBIT/S...]

As in section 4.4: one sending and one receiving host, one ingress and one egress PE, a network
emulator of so many Mbit/s (several are swept), 2 ms and 50 packets between them; the VPNs have
1 and 2 TCP flows in turn, told apart at the PE by address.
"""

import sys

HEAD = """\
# Written by: bench/pe/scenario.py {arguments}

[scenario]
title = "I2VFC section 4.4: {vpns} VPNs between two PEs"
description = "What the PEs take of processor and memory."
duration = "{seconds} s"
seed = 1

[defaults.link]
rate = "1 Gbit/s"
delay = "0 ms"
buffer = "1000 packets"

[node.sender]

[node.receiver]

[node.in]
kind = "pe"

[node.out]
kind = "pe"

[link.sender]
ends = ["sender", "in"]

[link.emulator]
ends = ["in", "out"]
rate = "{first} Mbit/s"
delay = "2 ms"
buffer = "50 packets"

[link.receiver]
ends = ["out", "receiver"]

[defaults.vpn]
ingress = "in"
egress = "out"
encapsulation = "mpls-in-udp"
control = {{ kind = "i2vfc", increase = 0.1, decrease = 0.1, queue = "128 packets", report_every = 4 }}

[defaults.flow]
from = "sender"
to = "receiver"
transport = "tcp"
"""

VPN = """
[vpn.vpn{number}]

[flow.tcp{number}]
vpn = "vpn{number}"
count = {flows}
start = "{start} ms"
"""

TAIL = """
[expect.used]
metric = "link.utilisation"
subject = "emulator.forward"
over = ["10 s", "20 s"]
at_least = 0.9

[plot.processor]
title = "Processor time of the PEs"
caption = "Share of one core, the kernel's work on their behalf included."
metric = "pe.processor"

[plot.memory]
title = "Memory of the PEs"
metric = "pe.memory"
"""


def main():
    vpns, rates = int(sys.argv[1]), sys.argv[2:] or ["100"]
    text = HEAD.format(arguments=" ".join(sys.argv[1:]), vpns=vpns, first=rates[0], seconds=20)
    if len(rates) > 1:
        text += "\n[sweep]\n" + '"link.emulator.rate" = [' + ", ".join(f'"{rate} Mbit/s"' for rate in rates) + "]\n"
    for number in range(1, vpns + 1):
        text += VPN.format(number=number, flows=2 - number % 2, start=20 * number)
    print(text + TAIL, end="")


if __name__ == "__main__":
    main()
