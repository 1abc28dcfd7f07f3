// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Frames for a router under test, and what comes back.
 *
 * `generate` makes frames of a template that the kernel runs it on (BPF_PROG_TEST_RUN with live frames):
 * each is numbered and sent to the next of so many networks. `receive` counts what arrives. */
#include "kernel.h"

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} made SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} seen SECTION(".maps");

/* Frames go to so many networks one after the other: IPv4 prefixes of 24 bits from that of the template on. */
const volatile u32 NETWORKS = 1;
/* Bytes of labels in front of the IPv4 packet. */
const volatile u32 LABELS = 0;
/* How each frame begins. */
const volatile u64 BEGINNING[6] = {};

SECTION("xdp") int generate(struct xdp_md *frame)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *ethernet = (void *)(u64)frame->data;
	struct ipv4 *ip;
	u32 key = 0, sum, network;
	u64 *count = map_lookup(&made, &key);

	if (!count || LABELS > MOST_LABELS * LABEL)
		return XDP_ABORTED;
	if ((void *)(ethernet + sizeof(BEGINNING)) > end)
		return XDP_ABORTED;
	/* Its memory was a frame before, with whatever the router made of it. */
#pragma unroll
	for (int word = 0; word < 6; word++)
		((u64 *)ethernet)[word] = BEGINNING[word];
	ip = (void *)(ethernet + ETHERNET + LABELS);
	if ((void *)(ip + 1) > end)
		return XDP_ABORTED;
	network = (u32)(*count % NETWORKS) << 8;
	ip->destination = to_host32(to_host32(ip->destination) + network);
	sum = 0;
#pragma unroll
	for (int word = 0; word < 10; word++)
		sum += ((u16 *)ip)[word];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->checksum = ~((sum & 0xffff) + (sum >> 16));
	(*count)++;
	return XDP_TX;
}

SECTION("xdp") int receive(struct xdp_md *frame __attribute__((unused)))
{
	u32 key = 0;
	u64 *count = map_lookup(&seen, &key);

	if (count)
		(*count)++;
	return XDP_DROP;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
