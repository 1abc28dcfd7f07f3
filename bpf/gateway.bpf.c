// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Limits the windows that hosts advertise to each other through this machine by lowering the window field of
 * TCP segments that pass an interface. Only connections whose first segments were seen are limited, because
 * these announce the window scale. An advertised window is never withdrawn: its right edge stays until data has
 * reached it. */
#include "tcp.h"

/* Limit in bytes. */
const volatile u32 WINDOW = 0;
/* Bytes before the IP header. */
const volatile u32 LINK_HEADER = 14;

struct frame {
	u32 length;
	u32 type;
	u32 mark;
	u32 queue;
	u32 protocol;
};

enum { MAP_LRU_HASH = 9 };

/* One direction of a connection, from the advertiser to its peer. */
struct direction {
	struct addresses addresses;
	u16 from_port;
	u16 to_port;
	u32 unused;
};

struct advertised {
	/* Shift of the window field in bits. */
	u32 scale;
	u32 has_edge;
	/* Last sequence number the peer may send, plus one. */
	u32 edge;
};

struct {
	NUMBER(type, MAP_LRU_HASH);
	NUMBER(max_entries, 65536);
	TYPE(key, struct direction);
	TYPE(value, struct advertised);
} directions SECTION(".maps");

/* The order is that of netstage_tcp_watch::gateway. */
enum count { LOWERED, AS_IT_WAS, UNKNOWN, COUNTS };

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, COUNTS);
	TYPE(key, u32);
	TYPE(value, u64);
} counts SECTION(".maps");

static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const store_bytes)(void *frame, u32 offset, const void *from, u32 length, u64 flags) = (void *)9;
static long (*const l4_csum_replace)(void *frame, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;
static long (*const load_bytes)(const void *frame, u32 offset, void *to, u32 length) = (void *)26;

struct ipv6 {
	u32 class;
	u16 length;
	u8 next;
	u8 hops;
	u64 source[2];
	u64 destination[2];
};

struct tcp {
	u16 source;
	u16 destination;
	u32 sequence;
	u32 acknowledged;
	u8 length;
	u8 flags;
	u16 window;
	u16 checksum;
	u16 urgent;
};

/* TC_ACT_UNSPEC: continue with the next program. */
#define NEXT -1
#define IPV4_PROTOCOL 0x0008
#define IPV6_PROTOCOL 0xdd86
#define TCP 6
#define SYN 2
#define RST 4
#define ACK 16
#define NO_SCALE 0xff
#define MOST_SCALE 14

INLINE void count(u32 what)
{
	u64 *value = map_lookup(&counts, &what);

	if (value)
		(*value)++;
}

/* Returns the offset of the TCP header, or zero if there is none. */
INLINE u32 find_tcp(struct frame *frame, struct direction *direction)
{
	struct addresses *addresses = &direction->addresses;

	if (frame->protocol == IPV4_PROTOCOL) {
		struct ipv4 ip;

		if (load_bytes(frame, LINK_HEADER, &ip, sizeof(ip)) || ip.protocol != TCP)
			return 0;
		/* Only the first fragment has the header; only whole packets are processed. */
		if (ip.fragment & to_host16(0x3fff))
			return 0;
		addresses->local[0] = addresses->remote[0] = 0;
		addresses->local[1] = (u64)ip.source << 32 | 0xffff0000;
		addresses->remote[1] = (u64)ip.destination << 32 | 0xffff0000;
		return LINK_HEADER + (ip.version_and_length & 15) * 4;
	}
	if (frame->protocol == IPV6_PROTOCOL) {
		struct ipv6 ip;

		if (load_bytes(frame, LINK_HEADER, &ip, sizeof(ip)) || ip.next != TCP)
			return 0;
		addresses->local[0] = ip.source[0];
		addresses->local[1] = ip.source[1];
		addresses->remote[0] = ip.destination[0];
		addresses->remote[1] = ip.destination[1];
		return LINK_HEADER + sizeof(ip);
	}
	return 0;
}

INLINE int is_meant(struct direction *direction)
{
	int has = !PORTS;

	for (u32 at = 0; at < MOST && at < PORTS; at++)
		has |= PORT[at] == direction->from_port || PORT[at] == direction->to_port;
	if (!has)
		return 0;
	has = !ADDRESSES;
	for (u32 at = 0; at < MOST && at < ADDRESSES; at++)
		has |= is_within(direction->addresses.local, at) || is_within(direction->addresses.remote, at);
	return has;
}

/* Returns the value of the window scale option (RFC 7323). */
INLINE u32 scale_of(struct frame *frame, u32 at, u32 end)
{
	u8 option[3];

	for (int number = 0; number < 20 && at < end; number++) {
		if (load_bytes(frame, at, option, 1) || option[0] == 0)
			break;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (load_bytes(frame, at, option, 2) || option[1] < 2)
			break;
		if (option[0] == 3 && option[1] == 3 && !load_bytes(frame, at, option, 3))
			return option[2] > MOST_SCALE ? MOST_SCALE : option[2];
		at += option[1];
	}
	return NO_SCALE;
}

INLINE void reverse(struct direction *direction, struct direction *to)
{
	to->addresses.local[0] = direction->addresses.remote[0];
	to->addresses.local[1] = direction->addresses.remote[1];
	to->addresses.remote[0] = direction->addresses.local[0];
	to->addresses.remote[1] = direction->addresses.local[1];
	to->from_port = direction->to_port;
	to->to_port = direction->from_port;
	to->unused = 0;
}

/* The windows of the first two segments are not scaled; later ones are only if both segments announce a scale. */
INLINE void learn(struct frame *frame, struct direction *direction, struct tcp *tcp, u32 at)
{
	struct advertised new = { .scale = scale_of(frame, at + sizeof(*tcp), at + (tcp->length >> 4) * 4) };

	if (tcp->flags & ACK) {
		struct direction other;
		struct advertised *opposite;

		reverse(direction, &other);
		opposite = map_lookup(&directions, &other);
		if (!opposite)
			return;
		if (new.scale == NO_SCALE || opposite->scale == NO_SCALE)
			new.scale = opposite->scale = 0;
	}
	map_update(&directions, direction, &new, 0);
}

INLINE void lower(struct frame *frame, u32 at, u16 from, u16 to)
{
	to = to_host16(to);
	l4_csum_replace(frame, at + 16, from, to, sizeof(to));
	store_bytes(frame, at + 14, &to, sizeof(to), 0);
	count(LOWERED);
}

SECTION("classifier") int limit_window(struct frame *frame)
{
	struct direction direction = {};
	struct advertised *advertised;
	u32 at = find_tcp(frame, &direction), acknowledged, window, allowed;
	struct tcp tcp;
	u16 field;

	if (!at || load_bytes(frame, at, &tcp, sizeof(tcp)))
		return NEXT;
	direction.from_port = to_host16(tcp.source);
	direction.to_port = to_host16(tcp.destination);
	if ((tcp.flags & RST) || !is_meant(&direction))
		return NEXT;
	if (tcp.flags & SYN) {
		learn(frame, &direction, &tcp, at);
		if (to_host16(tcp.window) > WINDOW)
			lower(frame, at, tcp.window, WINDOW);
		return NEXT;
	}
	advertised = map_lookup(&directions, &direction);
	if (!advertised || advertised->scale > MOST_SCALE) {
		count(UNKNOWN);
		return NEXT;
	}
	acknowledged = to_host32(tcp.acknowledged);
	window = (u32)to_host16(tcp.window) << advertised->scale;
	allowed = WINDOW;
	if (advertised->has_edge && (int)(advertised->edge - (acknowledged + allowed)) > 0)
		allowed = advertised->edge - acknowledged;
	if (window <= allowed) {
		/* The host itself may withdraw a window. */
		advertised->edge = acknowledged + window;
		advertised->has_edge = 1;
		count(AS_IT_WAS);
		return NEXT;
	}
	/* Rounded up, so that the edge does not move back and a small window does not close. */
	field = (allowed + (1u << advertised->scale) - 1) >> advertised->scale;
	advertised->edge = acknowledged + ((u32)field << advertised->scale);
	advertised->has_edge = 1;
	lower(frame, at, tcp.window, field);
	return NEXT;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
