// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Fast path of the router: the decisions of netstage_core::forward for ordinary packets. Every other
 * packet is passed to the kernel unchanged, where the slow path decides by the same tables. This
 * program may therefore give up at any point before it has changed a packet, but must not decide
 * differently.
 *
 * The tables are written by netstage_router. Single words change while they are read; anything longer
 * is written before the word that refers to it. */
#include "kernel.h"

#define MOST_HOPS 15
#define MOST_PORTS 64
/* Maximum number of labels popped in sequence; more are handled by the slow path. */
#define MOST_POPS 3

/* EtherTypes in memory byte order. */
#define IPV4 0x0008
#define IPV6 0xdd86
#define MPLS 0x4788

#define TCP 6
#define UDP 17
#define ICMP 1
#define ICMPV6 58

/* Words of routes: the number of a further row, or of a target. */
#define LEADS_ON (1u << 31)
#define ROW 256

struct row {
	u32 words[ROW];
};

/* First rows of a table, and the number of address bits its first level covers: 8, 16 or 24. */
struct table {
	u32 v4_start;
	u32 v4_bits;
	u32 v6_start;
	u32 v6_bits;
};

#define DISCARD 0xffffffffu

struct target {
	/* Number of hops; zero: slow path. DISCARD: drop. */
	u32 count;
	u32 hops[MOST_HOPS];
};

struct hop {
	/* Index in `ports`. */
	u32 port;
	u16 mtu;
	u8 depth;
	u8 is_pipe;
	/* Outermost first, as entries whose class, bottom and TTL are zero. */
	u32 labels[MOST_LABELS];
	u8 to[6];
	u8 from[6];
	/* Whether the neighbor's MAC address is known. */
	u32 is_ready;
};

/* Meaning of a label in one word: action, TTL model, and target or table. */
#define ACTION(word) ((word)&3)
#define IS_PIPE(word) ((word) >> 2 & 1)
#define LEADS_TO(word) ((word) >> 3)
enum action { UNKNOWN, SWAP, POP };

struct incoming {
	u32 action;
	u32 unused;
	/* Bit set of interfaces on which the label may arrive. */
	u64 expected;
};

struct interface {
	/* Its number plus one; zero: not an interface of the router. */
	u32 number;
	u32 table;
	u8 mac[6];
	u8 flags;
	/* An `enum source_check`. */
	u8 source_check;
};

/* Flag of an interface: labels are accepted. */
#define ACCEPTS_LABELS 1

/* Verification of the sources of packets without labels (uRPF). */
enum source_check { UNCHECKED, LOOSE, STRICT };

struct count {
	u64 packets;
	u64 bytes;
};

/* Outcomes of frames; the order is that of netstage_router::counter. */
enum total {
	ROUTED,
	PUSHED,
	SWAPPED,
	UNCOVERED,
	POPPED,
	TO_SLOW_PATH,
	BAD_CHECKSUM,
	UNKNOWN_LABEL,
	UNEXPECTED_LABEL,
	DISCARDED,
	SPOOFED,
	TOTALS,
};

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct row);
} routes SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct table);
} tables SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct target);
} targets SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct hop);
} hops SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1 << 20);
	TYPE(key, u32);
	TYPE(value, struct incoming);
} labels SECTION(".maps");

/* By the kernel's interface index. */
struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1 << 16);
	TYPE(key, u32);
	TYPE(value, struct interface);
} interfaces SECTION(".maps");

struct {
	NUMBER(type, MAP_DEVMAP);
	NUMBER(max_entries, MOST_PORTS);
	TYPE(key, u32);
	TYPE(value, u32);
} ports SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, TOTALS);
	TYPE(key, u32);
	TYPE(value, struct count);
} totals SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct count);
} target_counts SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct count);
} label_counts SECTION(".maps");

/* Frames received for the router and frames sent, alternating, by port. */
struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, MOST_PORTS * 2);
	TYPE(key, u32);
	TYPE(value, struct count);
} port_counts SECTION(".maps");

/* Makes consecutive routers distribute flows differently. */
const volatile u64 SEED = 0;

struct ethernet {
	u8 to[6];
	u8 from[6];
	u16 kind;
} __attribute__((packed));

struct ipv6 {
	u32 version_class_flow;
	u16 length;
	u8 next;
	u8 hop_limit;
	u8 source[16];
	u8 destination[16];
} __attribute__((packed));

/* Fragment offset and "more fragments" of IPv4, in memory byte order. */
#define IS_FRAGMENT 0xff3f

INLINE void add(void *map, u32 key, u32 bytes)
{
	struct count *count = map_lookup(map, &key);

	if (count) {
		count->packets++;
		count->bytes += bytes;
	}
}

INLINE u32 length_of(struct xdp_md *frame)
{
	return (u32)((u64)frame->data_end - (u64)frame->data);
}

INLINE int drop(struct xdp_md *frame, enum total reason)
{
	add(&totals, reason, length_of(frame));
	return XDP_DROP;
}

INLINE int pass(struct xdp_md *frame)
{
	add(&totals, TO_SLOW_PATH, length_of(frame));
	return XDP_PASS;
}

INLINE u32 word_at(u32 row, u32 within)
{
	struct row *found = map_lookup(&routes, &row);

	return found ? *(volatile u32 *)&found->words[within & (ROW - 1)] : 0;
}

/* Returns the target of an IPv4 address; zero is none. */
INLINE u32 route_v4(const struct table *table, u32 address)
{
	u32 shift = 32 - table->v4_bits;
	u32 first = address >> (shift & 31);
	u32 below = table->v4_start + (1u << (table->v4_bits & 31)) / ROW;
	u32 word = word_at(table->v4_start + first / ROW, first);

	for (int row = 0; row < 3 && word & LEADS_ON; row++) {
		shift -= 8;
		word = word_at(below + (word & ~LEADS_ON), address >> (shift & 31));
	}
	return word & LEADS_ON ? 0 : word;
}

/* As route_v4 for IPv6, with the address in two halves. */
INLINE u32 route_v6(const struct table *table, u64 high, u64 low)
{
	u32 bits = table->v6_bits;
	u32 first = high >> (64 - bits & 63);
	u32 below = table->v6_start + (1u << (bits & 31)) / ROW;
	u32 word = word_at(table->v6_start + first / ROW, first);

	for (u32 at = 8; at < 128 && word & LEADS_ON; at += 8) {
		if (at >= bits)
			word = word_at(below + (word & ~LEADS_ON), (at < 64 ? high : low) >> (56 - (at & 63)));
	}
	return word & LEADS_ON ? 0 : word;
}

/* netstage_wire::ip::View::flow_hash. */
INLINE u64 mixed(u64 state, u64 word)
{
	u64 z = (state ^ word) + 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Ports are hashed for protocols known to have them and whole headers; other protocols have no hash here. The
 * transport has `length` bytes; frame padding may follow. */
INLINE int add_ports(u64 *hash, u8 protocol, const void *transport, u32 length, const void *end)
{
	*hash = mixed(*hash, protocol);
	if (protocol == ICMP || protocol == ICMPV6)
		return 1;
	if ((protocol != TCP && protocol != UDP) || length < 4 || transport + 4 > end)
		return 0;
	*hash = mixed(*hash, to_host32(*(const u32 *)transport));
	return 1;
}

INLINE int hash_v4(const struct ipv4 *ip, const void *end, u32 *hash)
{
	u64 state = mixed(SEED, (u64)to_host32(ip->source) << 32 | to_host32(ip->destination));

	if (ip->fragment & IS_FRAGMENT) {
		*hash = mixed(state, ip->protocol) >> 32;
		return 1;
	}
	if (!add_ports(&state, ip->protocol, ip + 1, to_host16(ip->length) - sizeof(*ip), end))
		return 0;
	*hash = state >> 32;
	return 1;
}

INLINE int hash_v6(const struct ipv6 *ip, const void *end, u32 *hash)
{
	const u64 *words = (const u64 *)ip->source;
	u64 state = SEED;

#pragma unroll
	for (int word = 0; word < 4; word++)
		state = mixed(state, to_host64(words[word]));
	if (!add_ports(&state, ip->next, ip + 1, to_host16(ip->length), end))
		return 0;
	*hash = state >> 32;
	return 1;
}

/* Returns the hop of a hash; none: slow path. */
INLINE struct hop *choose(const struct target *target, u32 hash)
{
	u32 place = (u64)hash * target->count >> 32;
	u32 number;
	struct hop *hop;

	if (place >= MOST_HOPS)
		return 0;
	number = *(volatile u32 *)&target->hops[place];
	hop = map_lookup(&hops, &number);
	return hop && hop->is_ready ? hop : 0;
}

INLINE void address(struct ethernet *ethernet, const struct hop *hop, u16 kind)
{
	__builtin_memcpy(ethernet->to, hop->to, 6);
	__builtin_memcpy(ethernet->from, hop->from, 6);
	ethernet->kind = kind;
}

INLINE int leave(struct xdp_md *frame, const struct hop *hop, enum total what)
{
	add(&totals, what, length_of(frame));
	add(&port_counts, hop->port * 2 + 1, length_of(frame));
	return redirect_map(&ports, hop->port, 0);
}

/* Writes a hop's labels at the start of the packet, where there is room; `innermost` is the rest of the last
 * entry, and without the bottom bit of the others. */
INLINE int write_labels(struct xdp_md *frame, const struct hop *hop, u32 innermost)
{
	void *end = (void *)(u64)frame->data_end;
	u32 *entry = (void *)(u64)frame->data + ETHERNET;
	u32 depth = hop->depth;

#pragma unroll
	for (u32 place = 0; place < MOST_LABELS; place++) {
		u32 rest = place + 1 == depth ? innermost : innermost & ~0x100u;

		if (place == depth)
			break;
		if ((void *)(entry + 1) > end)
			return 0;
		*entry++ = to_host32(hop->labels[place] | rest);
	}
	return 1;
}

/* Moves the start of the packet to make room for additional bytes of labels. */
INLINE struct ethernet *move(struct xdp_md *frame, int bytes)
{
	struct ethernet *ethernet;

	if (bytes && xdp_adjust_head(frame, -bytes))
		return 0;
	ethernet = (void *)(u64)frame->data;
	return (void *)(ethernet + 1) > (void *)(u64)frame->data_end ? 0 : ethernet;
}

/* No label's traffic class. */
#define NO_CLASS 0xff

/* Action after processing a packet's labels. */
enum next { ROUTE, CHANGE_TOP, DONE };

struct work {
	/* Bytes of labels to remove. */
	u32 popped;
	/* Table in which to look up an IP packet. */
	u32 table;
	/* Remaining hops permitted by the LSP, and its traffic class in the uniform model. */
	u8 limit;
	u8 class;
	u8 is_v6;
	/* Verification of the source of a packet without labels, and the index of its interface in `ports`. */
	u8 source_check;
	u32 port;
	/* Label to swap: its TTL here, its entry, its meaning. */
	u8 ttl;
	u32 top;
	u32 word;
	int action;
};

/* Returns the class of a packet beneath a popped label. */
INLINE u8 inherited_class(u8 class, u8 own)
{
	return class == NO_CLASS || class == own >> 5 ? own : (u8)(class << 5 | (own & 3));
}

INLINE u8 class_v6(const struct ipv6 *ip)
{
	return to_host32(ip->version_class_flow) >> 20;
}

INLINE void set_v4(struct ipv4 *ip, u8 ttl, u8 class)
{
	/* RFC 1624 equation 3; the TTL is the first byte of its word, and the class the second. */
	u32 sum = (u16)~ip->checksum + (u16)~(ip->ttl) + ttl;

	if (ttl == ip->ttl && class == ip->class)
		return;
	if (class != ip->class)
		sum += (u16)~(ip->class << 8) + (class << 8);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->checksum = ~((sum & 0xffff) + (sum >> 16));
	ip->ttl = ttl;
	ip->class = class;
}

INLINE void set_v6(struct ipv6 *ip, u8 hop_limit, u8 class)
{
	u32 word = to_host32(ip->version_class_flow);

	ip->version_class_flow = to_host32((word & ~0x0ff00000u) | (u32)class << 20);
	ip->hop_limit = hop_limit;
}

/* netstage_core::forward: addresses of packets that must not be forwarded. */
INLINE int is_martian_v4(u32 address)
{
	u32 first = address >> 24;

	return first == 0 || first == 127 || first >= 224 || address >> 16 == 0xa9fe;
}

INLINE int is_martian_v6(u64 high, u64 low)
{
	return high >> 56 == 0xff || high >> 54 == 0x3fa || (high == 0 && (low <= 1 || low >> 32 == 0xffff));
}

enum way_back { NO_WAY_BACK, WAY_BACK, ASK_SLOW_PATH };

/* Returns whether a route to the source of a packet, given by its target, permits the packet. */
INLINE enum way_back way_back(u32 number, const struct work *work)
{
	struct target *target = map_lookup(&targets, &number);

	if (!number)
		return NO_WAY_BACK;
	if (!target || target->count == 0)
		return ASK_SLOW_PATH;
	if (target->count == DISCARD)
		return NO_WAY_BACK;
	if (work->source_check == LOOSE)
		return WAY_BACK;
	for (u32 place = 0; place < MOST_HOPS && place < target->count; place++) {
		u32 of = *(volatile u32 *)&target->hops[place];
		struct hop *hop = map_lookup(&hops, &of);

		if (hop && hop->port == work->port)
			return WAY_BACK;
	}
	return NO_WAY_BACK;
}

/* Forwards an IP packet. */
INLINE int route(struct xdp_md *frame, const struct table *table, const struct work *work, const int is_v6)
{
	u64 popped = work->popped & 31;
	void *end = (void *)(u64)frame->data_end, *start = (void *)(u64)frame->data + ETHERNET;
	struct ipv4 *v4;
	struct ipv6 *v6;
	struct ethernet *ethernet;
	struct target *target;
	struct hop *hop;
	u32 number, hash = 0, length, entry, room;
	u64 high, low;
	u16 kind = is_v6 ? IPV6 : IPV4;
	u8 ttl, class;

	OPAQUE(popped);
	start += popped;
	OPAQUE(start);
	v4 = start;
	v6 = start;
	if (is_v6) {
		if ((void *)(v6 + 1) > end)
			return pass(frame);
		length = sizeof(*v6) + to_host16(v6->length);
		ttl = v6->hop_limit;
		class = class_v6(v6);
		if ((to_host32(v6->version_class_flow) >> 28) != 6)
			return pass(frame);
		high = to_host64(((const u64 *)v6->destination)[0]);
		low = to_host64(((const u64 *)v6->destination)[1]);
		/* The slow path drops them, unless they are for the router itself. */
		if (is_martian_v6(high, low) || is_martian_v6(to_host64(((const u64 *)v6->source)[0]),
							      to_host64(((const u64 *)v6->source)[1])))
			return pass(frame);
		number = route_v6(table, high, low);
	} else {
		u32 sum = 0;

		if ((void *)(v4 + 1) > end || v4->version_and_length != 0x45)
			return pass(frame);
#pragma unroll
		for (int word = 0; word < 10; word++)
			sum += ((u16 *)v4)[word];
		sum = (sum & 0xffff) + (sum >> 16);
		if (((sum & 0xffff) + (sum >> 16)) != 0xffff)
			return drop(frame, BAD_CHECKSUM);
		length = to_host16(v4->length);
		ttl = v4->ttl;
		class = v4->class;
		if (length < sizeof(*v4))
			return pass(frame);
		if (is_martian_v4(to_host32(v4->destination)) || is_martian_v4(to_host32(v4->source)))
			return pass(frame);
		number = route_v4(table, to_host32(v4->destination));
	}
	if (start + length > end)
		return pass(frame);
	target = map_lookup(&targets, &number);
	if (!number || !target)
		return pass(frame);
	if (target->count == DISCARD) {
		add(&target_counts, number, length_of(frame));
		return drop(frame, DISCARDED);
	}
	if (target->count == 0)
		return pass(frame);
	if (work->source_check != UNCHECKED) {
		u32 back = is_v6 ? route_v6(table, to_host64(((const u64 *)v6->source)[0]),
					    to_host64(((const u64 *)v6->source)[1])) :
				   route_v4(table, to_host32(v4->source));

		switch (way_back(back, work)) {
		case NO_WAY_BACK:
			return drop(frame, SPOOFED);
		case ASK_SLOW_PATH:
			return pass(frame);
		case WAY_BACK:
			break;
		}
	}
	if (target->count > 1 && !(is_v6 ? hash_v6(v6, end, &hash) : hash_v4(v4, end, &hash)))
		return pass(frame);
	hop = choose(target, hash);
	ttl = ttl < work->limit ? ttl : work->limit;
	class = inherited_class(work->class, class);
	if (!hop || ttl <= 1)
		return pass(frame);
	room = hop->mtu - hop->depth * LABEL;
	if (hop->depth > MOST_LABELS || room > hop->mtu || length > room)
		return pass(frame);

	/* From here on the packet is changed. */
	ttl--;
	if (is_v6)
		set_v6(v6, ttl, class);
	else
		set_v4(v4, ttl, class);
	add(&target_counts, number, length_of(frame));
	ethernet = move(frame, hop->depth * LABEL - (int)popped);
	if (!ethernet)
		return XDP_ABORTED;
	address(ethernet, hop, hop->depth ? MPLS : kind);
	if (hop->depth == 0)
		return leave(frame, hop, popped ? POPPED : ROUTED);
	entry = (u32)(class >> 5) << 9 | 0x100 | (hop->is_pipe ? 255 : ttl);
	if (!write_labels(frame, hop, entry))
		return XDP_ABORTED;
	return leave(frame, hop, PUSHED);
}

/* Returns netstage_core::forward's hash of a label stack above an IP packet; stacks deeper than a few labels
 * have no hash here. */
INLINE int hash_labels(struct xdp_md *frame, u32 popped, u32 *hash)
{
	void *end = (void *)(u64)frame->data_end;
	u32 *entry = (void *)(u64)frame->data + ETHERNET + popped;

#pragma unroll
	for (int depth = 0; depth < 3; depth++) {
		u32 value;

		if ((void *)(entry + 1) > end)
			return 0;
		value = to_host32(*entry++);
		if (value >> 12 == 7)
			return 0;
		if (value & 0x100) {
			struct ipv4 *v4 = (void *)entry;
			struct ipv6 *v6 = (void *)entry;

			if ((void *)(v4 + 1) > end)
				return 0;
			if (v4->version_and_length == 0x45 && (void *)v4 + to_host16(v4->length) <= end &&
			    to_host16(v4->length) >= sizeof(*v4))
				return hash_v4(v4, end, hash);
			if ((void *)(v6 + 1) > end || v4->version_and_length >> 4 != 6 ||
			    (void *)(v6 + 1) + to_host16(v6->length) > end)
				return 0;
			return hash_v6(v6, end, hash);
		}
	}
	return 0;
}

/* Replaces the top label by the labels of a hop. */
INLINE int swap(struct xdp_md *frame, const struct work *work)
{
	void *end = (void *)(u64)frame->data_end;
	u32 popped = work->popped & 31, top = work->top, word = work->word, label = top >> 12;
	u32 number = LEADS_TO(word), hash = 0;
	u8 ttl = work->ttl, class = top >> 9 & 7;
	u32 length = length_of(frame) - ETHERNET - popped - LABEL;
	struct target *target = map_lookup(&targets, &number);
	struct ethernet *ethernet;
	struct hop *hop;

	if (!target)
		return pass(frame);
	if (target->count == DISCARD)
		return drop(frame, DISCARDED);
	if (target->count == 0 || (target->count > 1 && !hash_labels(frame, popped, &hash)))
		return pass(frame);
	hop = choose(target, hash);
	if (!hop || hop->depth > MOST_LABELS || length + hop->depth * LABEL > hop->mtu)
		return pass(frame);
	/* Penultimate hop popping exposes an IP packet, whose header the slow path checks. */
	if (hop->depth == 0) {
		u32 *beneath = (void *)(u64)frame->data + ETHERNET + popped + LABEL;
		struct ipv4 *v4 = (void *)beneath;
		u16 kind = MPLS;

		if ((void *)(beneath + 1) > end)
			return pass(frame);
		if (top & 0x100) {
			u8 version = *(u8 *)beneath >> 4;

			if ((void *)(v4 + 1) > end)
				return pass(frame);
			if (version == 4) {
				kind = IPV4;
				if (!IS_PIPE(word))
					set_v4(v4, v4->ttl < ttl - 1 ? v4->ttl : ttl - 1, inherited_class(class, v4->class));
			} else if (version == 6) {
				struct ipv6 *v6 = (void *)beneath;

				if ((void *)(v6 + 1) > end)
					return pass(frame);
				kind = IPV6;
				if (!IS_PIPE(word))
					set_v6(v6, v6->hop_limit < ttl - 1 ? v6->hop_limit : ttl - 1,
					       inherited_class(class, class_v6(v6)));
			} else {
				return pass(frame);
			}
		} else if (!IS_PIPE(word)) {
			u32 value = to_host32(*beneath);

			if ((value & 0xff) > ttl - 1u)
				value = (value & ~0xffu) | (u8)(ttl - 1);
			*beneath = to_host32((value & ~0xe00u) | (top & 0xe00));
		}
		add(&target_counts, number, length_of(frame));
		add(&label_counts, label, length_of(frame));
		ethernet = move(frame, -(int)(popped + LABEL));
		if (!ethernet)
			return XDP_ABORTED;
		address(ethernet, hop, kind);
		return leave(frame, hop, UNCOVERED);
	}
	add(&target_counts, number, length_of(frame));
	add(&label_counts, label, length_of(frame));
	ethernet = move(frame, (int)(hop->depth * LABEL) - (int)(popped + LABEL));
	if (!ethernet)
		return XDP_ABORTED;
	address(ethernet, hop, MPLS);
	/* Class and bottom bit are kept; labels above have no bottom bit. */
	if (!write_labels(frame, hop, (top & 0xf00) | (u8)(ttl - 1)))
		return XDP_ABORTED;
	return leave(frame, hop, SWAPPED);
}

INLINE enum next done(struct work *work, int action)
{
	work->action = action;
	return DONE;
}

/* Processes labels until one must be swapped, or none is left. */
INLINE enum next labelled(struct xdp_md *frame, const struct interface *in, struct work *work)
{
#pragma unroll
	for (int pops = 0; pops < MOST_POPS; pops++) {
		void *end = (void *)(u64)frame->data_end;
		u32 *entry = (void *)(u64)frame->data + ETHERNET + pops * LABEL;
		u32 top, label, word;
		u8 ttl, version;

		if ((void *)(entry + 1) > end)
			return done(work, pass(frame));
		top = to_host32(*entry);
		if (work->class != NO_CLASS)
			top = (top & ~0xe00u) | (u32)work->class << 9;
		label = top >> 12;
		ttl = top;
		ttl = ttl < work->limit ? ttl : work->limit;
		if (label < 16) {
			/* Explicit null of either version; others are handled by the slow path. */
			if (label != 0 && label != 2)
				return done(work, pass(frame));
			if (!(in->flags & ACCEPTS_LABELS))
				return done(work, drop(frame, UNEXPECTED_LABEL));
			word = POP | work->table << 3;
		} else {
			struct incoming *incoming = map_lookup(&labels, &label);

			if (!incoming)
				return done(work, pass(frame));
			word = *(volatile u32 *)&incoming->action;
			if (ACTION(word) == UNKNOWN)
				return done(work, drop(frame, UNKNOWN_LABEL));
			if (!(incoming->expected >> ((in->number - 1) & 63) & 1))
				return done(work, drop(frame, UNEXPECTED_LABEL));
		}
		if (ttl <= 1)
			return done(work, pass(frame));
		work->popped = pops * LABEL;
		if (ACTION(word) == SWAP) {
			work->ttl = ttl;
			work->top = top;
			work->word = word;
			return CHANGE_TOP;
		}
		work->table = LEADS_TO(word);
		/* The ingress of the LSP verifies sources. */
		work->source_check = UNCHECKED;
		work->limit = IS_PIPE(word) ? 255 : ttl;
		work->class = IS_PIPE(word) ? NO_CLASS : top >> 9 & 7;
		if (!(top & 0x100))
			continue;
		if ((void *)(entry + 1) + 1 > end)
			return done(work, pass(frame));
		version = *(u8 *)(entry + 1) >> 4;
		/* An LSP that ends with the explicit null of IPv4 may also carry IPv6. */
		if ((version != 4 && version != 6) || (label == 2 && version != 6))
			return done(work, pass(frame));
		if (label >= 16)
			add(&label_counts, label, length_of(frame));
		work->popped = pops * LABEL + LABEL;
		work->is_v6 = version == 6;
		return ROUTE;
	}
	return done(work, pass(frame));
}

SECTION("xdp") int router(struct xdp_md *frame)
{
	struct ethernet *ethernet = (void *)(u64)frame->data;
	struct work work = { .limit = 255, .class = NO_CLASS };
	u32 index = frame->ingress_ifindex;
	struct interface *in;
	struct table *table;

	if ((void *)(ethernet + 1) > (void *)(u64)frame->data_end)
		return XDP_PASS;
	in = map_lookup(&interfaces, &index);
	if (!in || !in->number)
		return XDP_PASS;
	/* Frames to other addresses or broadcast belong to the kernel. */
	if (*(u32 *)ethernet->to != *(u32 *)in->mac || *(u16 *)(ethernet->to + 4) != *(u16 *)(in->mac + 4))
		return XDP_PASS;
	add(&port_counts, (in->number - 1) * 2, length_of(frame));
	work.table = in->table;
	work.source_check = in->source_check;
	work.port = in->number - 1;
	if (ethernet->kind == MPLS) {
		switch (labelled(frame, in, &work)) {
		case DONE:
			return work.action;
		case CHANGE_TOP:
			return swap(frame, &work);
		case ROUTE:
			break;
		}
	} else if (ethernet->kind == IPV6) {
		work.is_v6 = 1;
	} else if (ethernet->kind != IPV4) {
		return XDP_PASS;
	}
	table = map_lookup(&tables, &work.table);
	if (!table)
		return pass(frame);
	/* One copy for each version, compiled from the same lines. */
	return work.is_v6 ? route(frame, table, &work, 1) : route(frame, table, &work, 0);
}

/* Sends a frame on the port whose number follows its Ethernet header, to check whether it arrives. */
SECTION("xdp") int probe(struct xdp_md *frame)
{
	u8 *number = (void *)(u64)frame->data + ETHERNET;

	if ((void *)(number + 1) > (void *)(u64)frame->data_end)
		return XDP_ABORTED;
	return redirect_map(&ports, *number, 0);
}

/* Runs on the peer of a veth to which frames are redirected: without a program there, they are lost. */
SECTION("xdp") int pass_all(struct xdp_md *frame __attribute__((unused)))
{
	return XDP_PASS;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
