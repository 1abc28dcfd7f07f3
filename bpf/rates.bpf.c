// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Programs for measuring the router and for comparison with it.
 *
 * `scatter` creates frames from a template on which the kernel runs it (BPF_PROG_TEST_RUN with live frames),
 * for a number of networks in scattered order; `bare` sends the template unchanged, which gives the maximum
 * rate. `receive` counts frames. `forward` is a minimal program that forwards IPv4 by the kernel's own routes:
 * it looks up the next hop, decrements the TTL and redirects. */
#include "kernel.h"

static long (*const redirect)(u32 link, u64 flags) = (void *)23;

#define AF_INET 2
#define IPV4_IN_MEMORY 0x0008

/* struct bpf_fib_lookup of linux/bpf.h, as IPv4 uses it. */
struct fib_lookup {
	u8 family;
	u8 protocol;
	u16 source_port;
	u16 destination_port;
	u16 length;
	u32 link;
	u32 class;
	u32 source[4];
	u32 destination[4];
	u32 table;
	u8 from[6];
	u8 to[6];
};

static long (*const fib_lookup)(void *frame, struct fib_lookup *asked, int length, u32 flags) = (void *)69;

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u32);
} last SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} seen SECTION(".maps");

/* Number of destination networks: /24 prefixes from that of the template on, each STEP networks after the
 * previous one, modulo their number. */
const volatile u32 NETWORKS = 1;
const volatile u32 STEP = 0;
/* Bytes of labels before the IPv4 packet. */
const volatile u32 LABELS = 0;
/* Initial bytes of each frame. */
const volatile u64 BEGINNING[6] = {};

INLINE u16 folded(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

SECTION("xdp") int scatter(struct xdp_md *frame)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *ethernet = (void *)(u64)frame->data;
	struct ipv4 *ip;
	u32 key = 0, sum = 0;
	u32 *network = map_lookup(&last, &key);

	if (!network || LABELS > MOST_LABELS * LABEL)
		return XDP_ABORTED;
	if ((void *)(ethernet + sizeof(BEGINNING)) > end)
		return XDP_ABORTED;
	/* Its memory held an earlier frame, as changed by the router. */
#pragma unroll
	for (int word = 0; word < 6; word++)
		((u64 *)ethernet)[word] = BEGINNING[word];
	ip = (void *)(ethernet + ETHERNET + LABELS);
	if ((void *)(ip + 1) > end)
		return XDP_ABORTED;
	*network += STEP;
	if (*network >= NETWORKS)
		*network -= NETWORKS;
	ip->destination = to_host32(to_host32(ip->destination) + (*network << 8));
	ip->checksum = 0;
#pragma unroll
	for (int word = 0; word < 10; word++)
		sum += ((u16 *)ip)[word];
	ip->checksum = ~folded(sum);
	return XDP_TX;
}

SECTION("xdp") int bare(struct xdp_md *frame __attribute__((unused)))
{
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

SECTION("xdp") int forward(struct xdp_md *frame)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *ethernet = (void *)(u64)frame->data;
	struct ipv4 *ip = (void *)(ethernet + ETHERNET);
	struct fib_lookup asked = { .family = AF_INET };

	if ((void *)(ip + 1) > end || *(u16 *)(ethernet + 12) != IPV4_IN_MEMORY)
		return XDP_PASS;
	if (ip->version_and_length != 0x45 || ip->ttl <= 1)
		return XDP_PASS;
	asked.protocol = ip->protocol;
	asked.length = to_host16(ip->length);
	asked.link = frame->ingress_ifindex;
	asked.class = ip->class;
	asked.source[0] = ip->source;
	asked.destination[0] = ip->destination;
	if (fib_lookup(frame, &asked, sizeof(asked), 0))
		return XDP_PASS;
	ip->ttl--;
	/* RFC 1624: the TTL is the upper byte of its word. */
	ip->checksum = folded((u32)ip->checksum + to_host16(0x0100));
	__builtin_memcpy(ethernet, asked.to, 6);
	__builtin_memcpy(ethernet + 6, asked.from, 6);
	return redirect(asked.link, 0);
}

/* Runs on the peer of a veth to which frames are redirected: without a program there, they are lost. */
SECTION("xdp") int pass(struct xdp_md *frame __attribute__((unused)))
{
	return XDP_PASS;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
