"""Captures the UDP packets that reach an interface with the kernel's timestamps, and prints
statistics of the gaps between them as one JSON line. Independent of every generator.

Usage: capture.py INTERFACE PAYLOAD SECONDS GAP_NS cbr|poisson
"""

import array
import json
import math
import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35
ETH_P_IP = 0x0800
HEADERS = 14 + 20 + 8


def capture(interface: str, payload: int, seconds: float) -> array.array:
    """Returns the arrival times in nanoseconds of packets with this payload length."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    raw.bind((interface, ETH_P_IP))
    raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
    raw.settimeout(0.2)
    times = array.array("Q")
    print("ready", file=sys.stderr, flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            frame, control, _, _ = raw.recvmsg(HEADERS, 64)
        except TimeoutError:
            continue
        if frame[23] != socket.IPPROTO_UDP or struct.unpack_from("!H", frame, 38)[0] != payload + 8:
            continue
        stamp = next(data for _, kind, data in control if kind == SO_TIMESTAMPNS)
        seconds_part, nanoseconds = struct.unpack("qq", stamp)
        times.append(seconds_part * 1_000_000_000 + nanoseconds)
    return times


def statistics(times: array.array, expected_gap: int, pattern: str) -> dict:
    """Returns statistics of the middle of a CBR run, without the first and last tenth."""
    cut = len(times) // 10
    times = times[cut:len(times) - cut] if pattern == "cbr" else times
    gaps = sorted(later - earlier for earlier, later in zip(times, times[1:]))
    if len(gaps) < 10:
        return {"packets": len(times)}
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    result = {
        "packets": len(times),
        "rate_error": expected_gap / mean - 1,
        "gaps_within_5_percent": sum(abs(gap - expected_gap) <= expected_gap / 20 for gap in gaps) / len(gaps),
        "gap_deviation_us": deviation / 1e3,
        "gap_p99_us": gaps[len(gaps) * 99 // 100] / 1e3,
    }
    if pattern == "poisson":
        # Kolmogorov-Smirnov distance from the exponential distribution with the requested mean.
        count = len(gaps)
        distance = 0.0
        for rank, gap in enumerate(gaps):
            expected = 1 - math.exp(-gap / expected_gap)
            distance = max(distance, abs(expected - rank / count), abs((rank + 1) / count - expected))
        result["ks_distance"] = distance
        result["ks_limit_1_percent"] = 1.628 / math.sqrt(count)
    return result


if __name__ == "__main__":
    link, size, length, gap, kind = sys.argv[1:]
    print(json.dumps(statistics(capture(link, int(size), float(length)), int(gap), kind)))
