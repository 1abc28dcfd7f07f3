"""The scenario of a case for netstage: the peers' network, flows and TCP settings."""

NETWORK = """\
# Written by bench/sim/run.py.
[scenario]
title = "One bottleneck without control: {name}"
duration = "50 s"

[defaults.link]
rate = "{access_mbps} Mbit/s"
delay = "0 ms"
buffer = "1000 packets"

[defaults.flow]
transport = "tcp"
start = "5 s"
count = {flows}

[defaults.tcp]
algorithm = "newreno"
sack = true
timestamps = true
limited_transmit = true
max_segment_size = "1448 B"
window = "{window_bytes} B"
initial_window = 10
ack_every = 2
delayed_ack = "200 ms"
min_rto = "1 s"
initial_rto = "1 s"

[node.core1]
kind = "router"

[node.core2]
kind = "router"

[link.bottleneck]
ends = ["core1", "core2"]
rate = "{bottleneck_mbps} Mbit/s"
buffer = "{buffer_packets} packets"
"""

# 1472 bytes of payload are 1500 bytes of IP, the layer of the given rate.
BACKGROUND = """
[node.background]

[node.sink]

[link.background]
ends = ["background", "core1"]

[link.sink]
ends = ["core2", "sink"]

[flow.background]
from = "background"
to = "sink"
transport = "udp"
traffic = {{ model = "poisson", rate = "{background_mbps} Mbit/s", layer = "ip", packet = "1472 B" }}
background = true
count = 1
start = "0 s"
"""

VPN = """
[node.s{vpn}]

[node.in{vpn}]
kind = "pe"

[node.out{vpn}]
kind = "pe"

[node.r{vpn}]

[link.s{vpn}]
ends = ["s{vpn}", "in{vpn}"]

[link.L{vpn}]
ends = ["in{vpn}", "core1"]
delay = "{delay_ms} ms"

[link.out{vpn}]
ends = ["core2", "out{vpn}"]

[link.r{vpn}]
ends = ["out{vpn}", "r{vpn}"]

[vpn.vpn{vpn}]
ingress = "in{vpn}"
egress = "out{vpn}"
control = "none"

[flow.tcp{vpn}]
from = "s{vpn}"
to = "r{vpn}"
vpn = "vpn{vpn}"
"""


def scenario(case) -> str:
    """Returns the scenario file of a `Case` as text."""
    settings = vars(case)
    text = NETWORK.format(**settings)
    if case.background_mbps:
        text += BACKGROUND.format(**settings)
    for vpn in range(1, case.vpns + 1):
        text += VPN.format(vpn=vpn, delay_ms=case.delays_ms[vpn - 1])
    return text
