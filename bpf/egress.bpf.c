// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Enforces the policy of an agent on every packet that the sockets of its cgroup send: interfaces, destinations, one
 * token bucket for all, and a budget of bytes. Paces TCP so that the bucket rarely drops its packets. Layouts are those
 * of netstage_host::egress. */
#include "kernel.h"

struct packet {
	u32 length;
	u32 unused_1[9];
	u32 interface;
	u32 unused_2[8];
	u32 data;
	u32 data_end;
	u32 unused_3[20];
	u32 segments;
};

/* The kernel recognizes the lock by the name of its type. */
struct bpf_spin_lock {
	u32 value;
};

#define MOST_INTERFACES 16

struct limits {
	/* Bytes per second; zero is unlimited. */
	u64 rate;
	/* Bytes that may be sent at once. */
	u64 burst;
	/* Bytes that may be sent in total. */
	u64 allowance;
	/* Only destinations of the map, and these interfaces, are permitted. */
	u32 has_destinations;
	u32 has_interfaces;
	u32 interfaces[MOST_INTERFACES];
	/* Smallest MTU with which the kernel may split an IPv4 packet into fragments. */
	u32 min_mtu;
	u32 unused;
};

#define UNLIMITED (~0ULL)

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct limits);
} limits SECTION(".maps");

/* Tokens are bytes. A packet is sent if any are left, and may leave a debt of its own size. */
struct bucket {
	struct bpf_spin_lock lock;
	/* Whether tokens were missing in the current period, so that TCP may wait for a timeout. */
	u32 was_empty;
	u64 filled_ns;
	long long tokens;
	u64 sent;
	/* Rate of each TCP connection in bytes per second; zero until the tokens become few. */
	u64 pace;
	/* Start of the current period, and the bytes that TCP and others have sent or tried to send since. */
	u64 period_ns;
	u64 offered;
	u64 others;
	/* Whether the last period used most of the rate. */
	u64 is_used_up;
};

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct bucket);
} buckets SECTION(".maps");

/* An address after its family, 4 or 6; the length includes the family. */
struct destination {
	u32 length;
	u32 family;
	u64 address[2];
} __attribute__((packed, aligned(4)));

struct {
	NUMBER(type, MAP_LPM_TRIE);
	NUMBER(max_entries, 4096);
	NUMBER(map_flags, MAP_NO_PREALLOCATION);
	TYPE(key, struct destination);
	TYPE(value, u32);
} destinations SECTION(".maps");

/* Last permitted destination of each processor. */
struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct destination);
} recent SECTION(".maps");

/* Packets dropped by each rule: those of TCP, which adapts its rate, after the others. The last number is that of the round
 * trips in which the pace limited a connection. */
enum rule { BY_INTERFACE, BY_DESTINATION, BY_RATE, BY_BUDGET, RULES };
#define PACED (2 * RULES)

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, PACED + 1);
	TYPE(key, u32);
	TYPE(value, u64);
} drops SECTION(".maps");

struct connection;

static long (*const load_bytes)(const struct packet *packet, u32 offset, void *to, u32 length) = (void *)26;
static long (*const spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*const spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static long (*const setsockopt)(void *connection, int level, int option, void *value, int length) = (void *)49;
static long (*const request_calls)(struct connection *connection, int calls) = (void *)59;
/* Time of the last timer tick, which costs less than the exact time. */
static u64 (*const coarse_ns)(void) = (void *)160;

/* A packet dropped for its rate counts as congestion, to which TCP responds; others are an error of the sender. */
enum verdict { REFUSED, PASSED, CONGESTED };

/* Pacing rate that means none. */
#define UNPACED (~0U)
#define TCP 6
#define UDP 17
#define SYN 2
#define LOOPBACK 1
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define IPV6_FRAGMENT_HEADER 8
#define MIN_IPV6_MTU 1280
/* In the flags of IPv4. The kernel sets it on each packet within the path MTU, and on none that it splits. */
#define DO_NOT_FRAGMENT 0x40
#define NANOSECONDS 1000000000ULL
/* Time after which a bucket of any rate is full; bounds the product of rate and time. */
#define LONGEST_NS (10 * NANOSECONDS)
/* The pace of the connections is adapted once in this time, by a factor between a half and three halves: later while few
 * bytes are due, because the kernel sends up to 64 KB at once, and earlier where tokens are missing. */
#define PERIOD_NS (NANOSECONDS / 5)
#define LONG_PERIOD_NS NANOSECONDS
#define PERIOD_BYTES (256 << 10)
#define PACE_SCALE 1024
#define LEAST_FACTOR (PACE_SCALE / 2)
#define MOST_FACTOR (PACE_SCALE * 3 / 2)
#define MOST_CONNECTIONS 256
#define USED_UP (PACE_SCALE * 9 / 8)

INLINE void add_one(u32 index)
{
	u64 *count = map_lookup(&drops, &index);

	if (count)
		__sync_fetch_and_add(count, 1);
}

INLINE enum verdict drop(u32 rule, u32 protocol)
{
	add_one(protocol == TCP ? RULES + rule : rule);
	return rule == BY_RATE ? CONGESTED : REFUSED;
}

INLINE int is_permitted(struct destination *to)
{
	u32 zero = 0;
	struct destination *last = map_lookup(&recent, &zero);

	if (!last)
		return 0;
	if (last->family == to->family && last->address[0] == to->address[0] && last->address[1] == to->address[1])
		return 1;
	if (!map_lookup(&destinations, to))
		return 0;
	*last = *to;
	return 1;
}

INLINE void fill(struct bucket *bucket, struct limits *limit, u64 now)
{
	u64 since = now - bucket->filled_ns;

	/* Another processor may have read a later time. */
	if ((long long)since <= 0)
		return;
	if (since > LONGEST_NS)
		since = LONGEST_NS;
	bucket->tokens += since * limit->rate / NANOSECONDS;
	if (bucket->tokens > (long long)limit->burst)
		bucket->tokens = limit->burst;
	bucket->filled_ns = now;
}

/* Adapts the pace of the connections, so that what all offer equals the rate: a window of two packets is far above it
 * where the round-trip time is short, and TCP would then wait for timeouts. */
INLINE void adapt_pace(struct bucket *bucket, struct limits *limit, u64 now, u64 length, u32 protocol)
{
	int are_few = 2 * bucket->tokens < (long long)limit->burst;
	u64 since = now - bucket->period_ns, of_tcp = protocol == TCP ? length : 0, due, factor;

	/* Without a choice of the address, which the kernel permits to root only. */
	bucket->offered += of_tcp;
	bucket->others += length - of_tcp;
	if (!bucket->pace) {
		if (!are_few)
			return;
		bucket->pace = limit->rate;
	} else {
		int is_early = bucket->tokens <= 0 && bucket->offered >= limit->burst;

		bucket->was_empty |= bucket->tokens <= 0;
		if ((long long)since <= 0)
			return;
		if (since > LONGEST_NS)
			since = LONGEST_NS;
		due = since * limit->rate / NANOSECONDS;
		if (!is_early && (since < PERIOD_NS || (due < PERIOD_BYTES && since < LONG_PERIOD_NS)))
			return;
		/* Tokens are saved while they are few. */
		if (are_few)
			due -= due / 16;
		due = due > bucket->others ? due - bucket->others : 0;
		factor = due * PACE_SCALE / (bucket->offered + 1);
		bucket->is_used_up = factor < USED_UP;
		if (factor > MOST_FACTOR)
			factor = MOST_FACTOR;
		if (bucket->was_empty && factor > PACE_SCALE)
			factor = PACE_SCALE;
		if (factor < LEAST_FACTOR)
			factor = LEAST_FACTOR;
		/* After a pause, there may be fewer connections. */
		bucket->pace = since > LONG_PERIOD_NS * 2 ? limit->rate : bucket->pace * factor / PACE_SCALE;
		if (bucket->pace > limit->rate)
			bucket->pace = limit->rate;
		if (bucket->pace < limit->rate / MOST_CONNECTIONS + 1)
			bucket->pace = limit->rate / MOST_CONNECTIONS + 1;
		bucket->was_empty = is_early;
	}
	bucket->period_ns = now;
	bucket->offered = 0;
	bucket->others = 0;
}

/* Takes the tokens of a packet. Returns the rule that forbids it, or RULES. */
INLINE enum rule take(struct bucket *bucket, struct limits *limit, u64 length, u32 protocol)
{
	u64 now = coarse_ns();
	enum rule rule = RULES;

	spin_lock(&bucket->lock);
	if (limit->rate) {
		fill(bucket, limit, now);
		adapt_pace(bucket, limit, now, length, protocol);
		if (bucket->tokens <= 0)
			rule = BY_RATE;
	}
	if (length > limit->allowance || bucket->sent > limit->allowance - length)
		rule = BY_BUDGET;
	if (rule == RULES) {
		bucket->tokens -= length;
		bucket->sent += length;
	}
	spin_unlock(&bucket->lock);
	return rule;
}

/* Returns the bytes of the headers that fragments add to a packet. The path MTU is not known here: a message from the
 * network may have lowered it to the smallest one. */
INLINE u64 fragment_headers(u64 length, u32 header, u32 fragment_header, u32 mtu)
{
	u64 room = mtu > header + fragment_header + 8 ? (mtu - header - fragment_header) & ~7ULL : 8;

	if (length <= mtu || length <= header)
		return 0;
	return (length - header + room - 1) / room * (header + fragment_header) - header;
}

SECTION("cgroup_skb/egress") int limit_egress(struct packet *packet)
{
	struct destination to = { .length = 160 };
	u32 zero = 0, is_listed = 0, protocol, offset, headers;
	u8 *bytes = (u8 *)(long)packet->data, *end = (u8 *)(long)packet->data_end;
	struct limits *limit = map_lookup(&limits, &zero);
	struct bucket *bucket = map_lookup(&buckets, &zero);
	u64 length = packet->length, fragments = 0;
	enum rule rule;
	u8 tcp[2];

	if (!limit || !bucket)
		return REFUSED;
	/* It does not leave the host. */
	if (packet->interface == LOOPBACK)
		return PASSED;
	if (bytes + IPV4_HEADER > end)
		return drop(BY_DESTINATION, 0);
	to.family = bytes[0] >> 4;
	if (to.family == 4) {
		to.address[0] = *(u32 *)(bytes + 16);
		protocol = bytes[9];
		offset = (bytes[0] & 15) * 4;
		if (!(bytes[6] & DO_NOT_FRAGMENT))
			fragments = fragment_headers(length, offset, 0, limit->min_mtu);
	} else {
		if (bytes + IPV6_HEADER > end)
			return drop(BY_DESTINATION, 0);
		to.address[0] = *(u64 *)(bytes + 24);
		to.address[1] = *(u64 *)(bytes + 32);
		protocol = bytes[6];
		offset = IPV6_HEADER;
		/* TCP never has the host split its packets of IPv6. */
		if (protocol != TCP)
			fragments = fragment_headers(length, offset, IPV6_FRAGMENT_HEADER, MIN_IPV6_MTU);
	}
	if (limit->has_interfaces) {
		for (int index = 0; index < MOST_INTERFACES; index++)
			is_listed |= limit->interfaces[index] == packet->interface;
		if (!is_listed)
			return drop(BY_INTERFACE, protocol);
	}
	if (limit->has_destinations && !is_permitted(&to))
		return drop(BY_DESTINATION, protocol);
	headers = offset;
	if (protocol == UDP) {
		headers += 8;
	} else if (protocol == TCP && !load_bytes(packet, offset + 12, tcp, sizeof(tcp))) {
		headers += (tcp[0] >> 4) * 4;
		/* Acknowledgments answer what others send. */
		if (length <= headers && !(tcp[1] & SYN))
			return PASSED;
	}
	if (!limit->rate && limit->allowance == UNLIMITED)
		return PASSED;
	/* The bytes of the packets into which the interface splits this one. */
	if (packet->segments > 1)
		length += (u64)(packet->segments - 1) * headers;
	else
		length += fragments;
	rule = take(bucket, limit, length, protocol);
	return rule == RULES ? PASSED : drop(rule, protocol);
}

/* The part of struct bpf_sock_ops of linux/bpf.h that is read. */
struct connection {
	u32 operation;
	u32 unused_1[4];
	u32 family;
	u32 unused_2[22];
	u32 segment;
};

/* Calls after the establishment of a connection, and at its samples of the round-trip time, if requested. */
enum { CONNECTED = 4, ACCEPTED = 5, SAMPLES_ROUND_TRIP = 12 };
#define CALL_AT_ROUND_TRIPS (1 << 3)
#define SOCKET_LEVEL 1
#define MAX_PACING_RATE 47
#define INET6 10
/* With time stamps. */
#define TCP_HEADER 32

SECTION("sockops") int pace_tcp(struct connection *connection)
{
	u32 zero = 0, headers, rate;
	struct bucket *bucket = map_lookup(&buckets, &zero);
	u64 pace;

	if (connection->operation == CONNECTED || connection->operation == ACCEPTED)
		request_calls(connection, CALL_AT_ROUND_TRIPS);
	else if (connection->operation != SAMPLES_ROUND_TRIP)
		return 0;
	if (!bucket || !bucket->pace)
		return 0;
	headers = TCP_HEADER + (connection->family == INET6 ? IPV6_HEADER : IPV4_HEADER);
	/* The kernel paces without headers. */
	pace = bucket->pace * connection->segment / (connection->segment + headers);
	rate = pace < UNPACED ? pace : UNPACED;
	setsockopt(connection, SOCKET_LEVEL, MAX_PACING_RATE, &rate, sizeof(rate));
	if (bucket->is_used_up)
		add_one(PACED);
	return 0;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
