// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Trial of a router: numbered and timestamped frames, and statistics of those that return.
 *
 * `generate` creates frames from a template on which the kernel runs it (BPF_PROG_TEST_RUN with live frames),
 * in timed batches. `receive` checks each frame against its expected form after forwarding. Both are loaded
 * again for each trial; netstage_tester sets their constants. */
#include "kernel.h"

/* EtherTypes of MPLS, IPv4 and IPv6, and the number of UDP, in memory byte order. */
#define MPLS 0x4788
#define IPV4 0x0008
#define IPV6 0xdd86
#define UDP 17
/* Maximum number of labels that are parsed. */
#define DEEPEST 4
/* Bottom-of-stack bit of a label entry. */
#define BOTTOM 0x00010000u

/* Maximum number of frame sizes per trial. */
#define SIZES 12
/* Clock readings of a batch before it returns until the next call. */
#define PATIENCE 64

/* Counters of `counts`, in the order of netstage_tester::count. */
enum count {
	RECEIVED,
	DUPLICATE,
	REORDERED,
	WRONG,
	STRAY,
	COUNTS,
};

/* Destination host in an IPv6 network. */
#define HOST 2
/* Position of a network's last bit relative to that of FIRST. */
#define NETWORK_BIT (IS_IPV6 ? 16 : 8)

struct ipv6 {
	u32 class_and_flow;
	u16 length;
	u8 next;
	u8 hops;
	u32 source[4];
	u64 destination[2];
} __attribute__((packed));

/* Address; an IPv4 address is its first word. */
struct source {
	u32 words[4];
};

#define MOST_STREAMS 8
#define MOST_PEERS 64
#define SECONDS 4096
/* Delays are counted in buckets: 2^FINE per power of two nanoseconds, up to 2^39 ns. */
#define FINE 7
#define OCTAVES (40 - FINE)
/* Sequence numbers remembered to detect duplicates. */
#define REMEMBERED (1 << 20)
/* Number of stored invalid frames, and maximum bytes of each. */
#define SAMPLES 8
#define SAMPLE 128
#define SMALLEST 60
#define SMALLEST6 80

struct per_second {
	u64 frames;
	u64 delay;
};

struct octave {
	u64 times[1 << FINE];
};

struct sample {
	u32 length;
	u32 stream;
	u8 bytes[SAMPLE];
};

/* Progress of a trial. The tester sets its start (CLOCK_MONOTONIC, zero: not yet) and its end. */
struct progress {
	u64 start;
	u64 batch;
	u64 sequence;
	u64 last;
	u32 in_batch;
	u32 is_over;
	/* Total lateness in nanoseconds that is not caught up on. */
	u64 lost;
	/* Time of the event for which networks are watched; zero: not yet. */
	u64 event;
	/* Frames sent late, maximum lateness, and the time at which that frame was due. */
	u64 late;
	u64 stall;
	u64 stalled_at;
	/* Maximum time between the timestamp of a frame and its departure. */
	u64 held;
	/* Time at which the current batch is due. */
	u64 due;
	/* Last reading of the clock. */
	u64 read;
	/* Timestamp of the first frame that the kernel has not sent yet, or zero, and number of such frames that are not late.
	 * The kernel sends after every BATCH calls. */
	u64 first;
	u32 queued;
	u32 calls;
};

/* Arrival of the first packet to a network after the event, and of its last packet. */
struct arrival {
	u64 first;
	u64 last;
};

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, COUNTS);
	TYPE(key, u32);
	TYPE(value, u64);
} counts SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, SECONDS);
	TYPE(key, u32);
	TYPE(value, struct per_second);
} seconds SECTION(".maps");

struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, OCTAVES);
	TYPE(key, u32);
	TYPE(value, struct octave);
} delays SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, REMEMBERED);
	TYPE(key, u32);
	TYPE(value, u32);
} remembered SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, MOST_STREAMS);
	TYPE(key, u32);
	TYPE(value, u32);
} highest SECTION(".maps");

/* One entry for each watched network. */
struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct arrival);
} arrivals SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, SAMPLES);
	TYPE(key, u32);
	TYPE(value, struct sample);
} samples SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct progress);
} progress SECTION(".maps");

/* Headers of frames as sent, or as they must arrive. The lengths, checksums and destination of IP and UDP are
 * zero here, because they differ in each frame. */
const volatile u16 ETHERNET_HEADER[ETHERNET / 2] = {};
const volatile u8 IS_IPV6 = 0;
const volatile u32 IP_HEADER[sizeof(struct ipv6) / 4] = {};
const volatile u32 UDP_PORTS = 0;
/* Source address of each received stream. */
const volatile struct source SOURCES[MOST_STREAMS] = {};
/* Label entries, outermost first, in host byte order. The label of the first is that of the peer. */
const volatile u32 LABELS = 0;
const volatile u32 LABEL_ENTRIES[MOST_LABELS] = {};
const volatile u32 PEER_LABELS[MOST_PEERS] = {};
/* Frames go to the networks in sequence: /24 prefixes from the address FIRST on, or /48 prefixes, of whose
 * addresses FIRST is the upper half. */
const volatile u64 FIRST = 0;
const volatile u32 NETWORKS = 1;
/* Number of peers over which networks are distributed in sequence. */
const volatile u32 PEERS = 1;
/* Lengths of IP packets, used in sequence. */
const volatile u32 SIZE_COUNT = 1;
const volatile u16 LENGTHS[SIZES] = {};
/* Trial and sending stream in every frame. A receiver expects STREAMS streams from STREAM on. */
const volatile u16 TRIAL = 0;
const volatile u8 STREAM = 0;
const volatile u8 STREAMS = 1;
/* Number of ports over which peers are distributed in sequence, and the index of this port. */
const volatile u32 PORTS = 1;
const volatile u32 PORT = 0;
/* Interval of batches in 1024ths of a nanosecond, frames per batch, and frames per trial. */
const volatile u64 BATCH_GAP = 0;
const volatile u32 BATCH = 1;
/* Maximum lateness in nanoseconds that is caught up on: a longer burst at full speed would not be the requested
 * load. */
const volatile u64 MOST_LATE = 0;
/* Maximum lateness in nanoseconds of a frame that counts as on time. */
const volatile u64 ON_TIME = 0;
/* Once this much is lost and a quarter of the frames are sent, the trial is void in any case. */
const volatile u64 MOST_LOST = ~0ULL;
const volatile u64 FRAMES = 0;
/* Whether networks are watched. */
const volatile u8 WATCHED = 0;

static u64 (*const now)(void) = (void *)5;
static long (*const xdp_adjust_tail)(struct xdp_md *frame, int bytes) = (void *)65;
static long (*const load_bytes)(struct xdp_md *frame, u32 offset, void *to, u32 length) = (void *)189;

struct udp {
	u32 ports;
	u16 length;
	u16 checksum;
} __attribute__((packed));

/* Content of every frame of a trial: 18 bytes, for which the smallest Ethernet frame has room. */
#define SIGNATURE 0x5354
struct stamp {
	u16 signature;
	u16 trial;
	u8 stream;
	u8 unused;
	u32 sequence;
	u64 sent;
} __attribute__((packed));

struct rest {
	struct udp udp;
	struct stamp stamp;
} __attribute__((packed));

INLINE void add(enum count what)
{
	u32 key = what;
	u64 *count = map_lookup(&counts, &key);

	if (count)
		(*count)++;
}

/* Returns a label of the packets to a network. */
INLINE u32 label_of(u32 label, u32 network)
{
	u32 entry = LABEL_ENTRIES[label], peer;

	if (label)
		return entry;
	peer = network % PEERS;
	OPAQUE(peer);
	return (entry & 0xfff) | (peer < MOST_PEERS ? PEER_LABELS[peer] : 0) << 12;
}

/* Returns the destination of packets to a network in host byte order; for IPv6 its upper half. */
INLINE u64 destination_of(u32 network)
{
	return FIRST + ((u64)network << NETWORK_BIT);
}

/* Returns the length of the IP packet with this sequence number. */
INLINE u32 length_of(u32 sequence)
{
	u32 turn = SIZE_COUNT > 1 ? sequence % SIZE_COUNT : 0;

	OPAQUE(turn);
	return turn < SIZES ? LENGTHS[turn] : LENGTHS[0];
}

INLINE u32 folded(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

INLINE u32 sum_of(const struct ipv4 *ip)
{
	u32 sum = 0;

#pragma unroll
	for (int word = 0; word < 10; word++)
		sum += ((u16 *)ip)[word];
	return folded(sum);
}

/* Returns the UDP checksum over IPv6 as sent: all bytes after the stamp are zero. */
INLINE u32 sum_of_ipv6(const struct ipv6 *ip, const struct rest *rest)
{
	u32 sum = (u32)rest->udp.length + to_host16(UDP);

#pragma unroll
	for (u32 word = 0; word < (2 * sizeof(u64) + sizeof(ip->source)) / 2; word++)
		sum += ((u16 *)ip->source)[word];
#pragma unroll
	for (u32 word = 0; word < sizeof(*rest) / 2; word++)
		sum += ((u16 *)rest)[word];
	return folded(sum);
}

/* Begins the frames that the kernel sends together. If those before were held for too long, they were late. */
INLINE void begin_queue(struct progress *made)
{
	u64 held = made->read - made->first;

	if (made->first && held > made->held)
		made->held = held;
	if (made->first && held > MOST_LATE)
		made->late += made->queued;
	made->first = made->queued = 0;
}

/* Returns whether the batch of the next frame is due, after waiting for a limited time. */
INLINE int is_due(struct progress *made)
{
	u64 due, time = 0;

	if (made->in_batch)
		goto next;
	due = made->start + (made->batch * BATCH_GAP >> 10);
	for (int tries = 0; tries < PATIENCE && time < due; tries++)
		time = now();
	made->read = time;
	/* The kernel makes a fixed number of calls: each call that finds no batch due should take long. */
	if (time < due)
		return 0;
	if (time - due > made->stall) {
		made->stall = time - due;
		made->stalled_at = due;
	}
	if (time > due + MOST_LATE) {
		u64 lost = time - due - MOST_LATE;

		due += lost;
		made->start += lost;
		made->lost += lost;
		if (made->lost > MOST_LOST && made->sequence > FRAMES / 4)
			made->is_over = 1;
	}
	made->due = due;
	made->batch++;
next:
	if (++made->in_batch >= BATCH)
		made->in_batch = 0;
	return 1;
}

/* Length of the IP header in bytes. */
#define IP_BYTES (IS_IPV6 ? sizeof(struct ipv6) : sizeof(struct ipv4))

SECTION("xdp") int generate(struct xdp_md *frame)
{
	u32 key = 0, network, length, headers = ETHERNET + LABELS * LABEL;
	struct progress *made = map_lookup(&progress, &key);
	struct rest *rest;
	u8 *ethernet;
	void *end, *ip;

	if (!made)
		return XDP_DROP;
	if (made->calls++ % BATCH == 0)
		begin_queue(made);
	if (!made->start || LABELS > MOST_LABELS || made->is_over || made->sequence >= FRAMES || !is_due(made))
		return XDP_DROP;
	length = length_of((u32)made->sequence);
	if (SIZE_COUNT > 1) {
		u32 found = (u32)((u64)frame->data_end - (u64)frame->data);

		OPAQUE(found);
		if (xdp_adjust_tail(frame, (int)(headers + length - found)))
			return XDP_DROP;
	}
	end = (void *)(u64)frame->data_end;
	ethernet = (void *)(u64)frame->data;
	ip = ethernet + headers;
	rest = ip + IP_BYTES;
	if ((void *)(rest + 1) > end)
		return XDP_DROP;
	/* Its memory held an earlier frame, as changed by the router: all bytes are written again. */
#pragma unroll
	for (int word = 0; word < ETHERNET / 2; word++)
		((u16 *)ethernet)[word] = ETHERNET_HEADER[word];
	network = (u32)(made->sequence % NETWORKS);
#pragma unroll
	for (u32 label = 0; label < MOST_LABELS; label++) {
		if (label >= LABELS)
			break;
		*(u32 *)(ethernet + ETHERNET + label * LABEL) = to_host32(label_of(label, network));
	}
#pragma unroll
	for (u32 word = 0; word < sizeof(struct ipv6) / 4; word++) {
		if (word * 4 >= IP_BYTES)
			break;
		((u32 *)ip)[word] = IP_HEADER[word];
	}
	rest->udp.ports = UDP_PORTS;
	rest->udp.length = to_host16(length - IP_BYTES);
	rest->udp.checksum = 0;
	rest->stamp.signature = SIGNATURE;
	rest->stamp.trial = TRIAL;
	rest->stamp.stream = STREAM;
	rest->stamp.unused = 0;
	rest->stamp.sequence = (u32)made->sequence;
	made->last = now();
	rest->stamp.sent = made->last;
	made->read = made->last;
	if (!made->first)
		made->first = made->last;
	if (made->last > made->due + ON_TIME)
		made->late++;
	else
		made->queued++;
	if (IS_IPV6) {
		struct ipv6 *header = ip;
		u16 sum;

		header->length = to_host16(length - sizeof(*header));
		header->destination[0] = to_host64(destination_of(network));
		header->destination[1] = to_host64((u64)HOST);
		sum = ~sum_of_ipv6(header, rest);
		rest->udp.checksum = sum ? sum : 0xffff;
	} else {
		struct ipv4 *header = ip;

		header->length = to_host16(length);
		header->destination = to_host32((u32)destination_of(network));
		header->checksum = ~sum_of(header);
	}
	made->sequence++;
	return XDP_TX;
}

INLINE int keep(struct xdp_md *frame, u32 stream)
{
	u32 key = WRONG, length = (u32)((u64)frame->data_end - (u64)frame->data);
	u64 *wrong = map_lookup(&counts, &key);
	struct sample *sample;

	if (!wrong)
		return XDP_DROP;
	key = (u32)*wrong;
	(*wrong)++;
	sample = key < SAMPLES ? map_lookup(&samples, &key) : 0;
	if (sample) {
		sample->length = length;
		sample->stream = stream;
		if (length >= SAMPLE)
			load_bytes(frame, 0, sample->bytes, SAMPLE);
		else if (length >= SMALLEST6 + 3 * LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST6 + 3 * LABEL);
		else if (length >= SMALLEST6 + 2 * LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST6 + 2 * LABEL);
		else if (length >= SMALLEST6 + LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST6 + LABEL);
		else if (length >= SMALLEST6)
			load_bytes(frame, 0, sample->bytes, SMALLEST6);
		else if (length >= SMALLEST + 3 * LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST + 3 * LABEL);
		else if (length >= SMALLEST + 2 * LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST + 2 * LABEL);
		else if (length >= SMALLEST + LABEL)
			load_bytes(frame, 0, sample->bytes, SMALLEST + LABEL);
		else
			load_bytes(frame, 0, sample->bytes, SMALLEST);
	}
	return XDP_DROP;
}

INLINE void note(u64 delay, u64 sent)
{
	u32 key = 0, shift = 0;
	struct progress *trial = map_lookup(&progress, &key);
	struct per_second *second;
	struct octave *octave;

	if (!trial)
		return;
	key = (u32)((sent - trial->start) / 1000000000ULL);
	second = map_lookup(&seconds, &key);
	if (second) {
		second->frames++;
		second->delay += delay;
	}
	if (delay >> 39)
		delay = (1ULL << 39) - 1;
	/* Distance of its highest bit from the fine ones. */
	if (delay >> (FINE + 16))
		shift += 16;
	if (delay >> (FINE + shift + 8))
		shift += 8;
	if (delay >> (FINE + shift + 4))
		shift += 4;
	if (delay >> (FINE + shift + 2))
		shift += 2;
	if (delay >> (FINE + shift + 1))
		shift += 1;
	if (delay >> (FINE + shift))
		shift += 1;
	key = shift;
	octave = map_lookup(&delays, &key);
	if (octave)
		octave->times[(shift ? delay >> (shift - 1) : delay) & ((1 << FINE) - 1)]++;
}

INLINE void watch(u32 network, u64 time)
{
	u32 key = 0;
	struct progress *trial = map_lookup(&progress, &key);
	struct arrival *arrival = map_lookup(&arrivals, &network);

	if (!trial || !arrival)
		return;
	arrival->last = time;
	if (trial->event && !arrival->first)
		arrival->first = time;
}

INLINE u32 wrong_ipv4(struct ipv4 *ip, const volatile struct source *source, u32 network, u32 length)
{
	u32 wrong = 0;

	/* The lengths, the checksum and the destination are zero in the template. */
	wrong |= ((u32 *)ip)[0] ^ IP_HEADER[0] ^ (u32)to_host16(length) << 16;
	wrong |= ((u32 *)ip)[1] ^ IP_HEADER[1];
	wrong |= (((u32 *)ip)[2] ^ IP_HEADER[2]) & 0xffff;
	wrong |= ip->source ^ source->words[0];
	wrong |= ip->destination ^ to_host32((u32)destination_of(network));
	wrong |= sum_of(ip) ^ 0xffff;
	return wrong;
}

INLINE u32 wrong_ipv6(struct ipv6 *ip, struct rest *rest, const volatile struct source *source, u32 network, u32 length)
{
	u32 wrong = 0;

	wrong |= ((u32 *)ip)[0] ^ IP_HEADER[0];
	wrong |= ((u32 *)ip)[1] ^ IP_HEADER[1] ^ to_host16(length - sizeof(*ip));
#pragma unroll
	for (int word = 0; word < 4; word++)
		wrong |= ip->source[word] ^ source->words[word];
	wrong |= ip->destination[0] != to_host64(destination_of(network));
	wrong |= ip->destination[1] != to_host64((u64)HOST);
	wrong |= sum_of_ipv6(ip, rest) ^ 0xffff;
	return wrong;
}

/* Returns whether a frame is correct, except for the bytes after the stamp. */
INLINE int is_right(u8 *ethernet, void *ip, struct rest *rest, u32 length)
{
	u32 network = rest->stamp.sequence % NETWORKS;
	u32 expected = length_of(rest->stamp.sequence);
	const volatile struct source *source = &SOURCES[(u8)(rest->stamp.stream - STREAM) & (MOST_STREAMS - 1)];
	u32 wrong = 0;

#pragma unroll
	for (int word = 0; word < ETHERNET / 2; word++)
		wrong |= ((u16 *)ethernet)[word] ^ ETHERNET_HEADER[word];
#pragma unroll
	for (u32 label = 0; label < MOST_LABELS; label++) {
		if (label >= LABELS)
			break;
		wrong |= *(u32 *)(ethernet + ETHERNET + label * LABEL) ^ to_host32(label_of(label, network));
	}
	wrong |= IS_IPV6 ? wrong_ipv6(ip, rest, source, network, expected) : wrong_ipv4(ip, source, network, expected);
	wrong |= rest->udp.ports ^ UDP_PORTS;
	wrong |= rest->udp.length ^ to_host16(expected - IP_BYTES);
	return !wrong && length >= expected;
}

/* Returns whether a packet belongs to the tester. */
INLINE int is_own(void *ip, struct rest *rest)
{
	if (rest->stamp.signature != SIGNATURE)
		return 0;
	if (IS_IPV6)
		return *(u8 *)ip >> 4 == 6 && ((struct ipv6 *)ip)->next == UDP;
	return ((struct ipv4 *)ip)->version_and_length == 0x45 && ((struct ipv4 *)ip)->protocol == UDP;
}

SECTION("xdp") int receive(struct xdp_md *frame)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *ethernet = (void *)(u64)frame->data;
	u32 at = ETHERNET, depth = 0, key, sequence, length;
	void *ip;
	struct rest *rest;
	u64 time = now();
	u32 *seen, stream;

	if ((void *)(ethernet + ETHERNET) > end)
		return XDP_PASS;
	if (*(u16 *)(ethernet + 12) == MPLS) {
#pragma unroll
		for (int label = 0; label < DEEPEST; label++) {
			u8 *entry = ethernet + at;

			if ((void *)(entry + LABEL) > end)
				return XDP_PASS;
			at += LABEL;
			depth++;
			if (*(u32 *)entry & BOTTOM)
				break;
		}
	} else if (*(u16 *)(ethernet + 12) != (IS_IPV6 ? IPV6 : IPV4)) {
		return XDP_PASS;
	}
	OPAQUE(at);
	if (at > ETHERNET + DEEPEST * LABEL)
		return XDP_PASS;
	ip = ethernet + at;
	rest = ip + IP_BYTES;
	if ((void *)(rest + 1) > end)
		return XDP_PASS;
	if (!is_own(ip, rest))
		return XDP_PASS;
	if (rest->stamp.trial != TRIAL)
		return XDP_DROP;
	sequence = rest->stamp.sequence;
	stream = rest->stamp.stream - STREAM;
	if (stream >= STREAMS || sequence % NETWORKS % PEERS % PORTS != PORT) {
		add(STRAY);
		return XDP_DROP;
	}
	length = (u32)(end - ip);
	if (depth != LABELS || !is_right(ethernet, ip, rest, length))
		return keep(frame, rest->stamp.stream);
	key = (sequence * STREAMS + stream) & (REMEMBERED - 1);
	seen = map_lookup(&remembered, &key);
	if (seen) {
		if (*seen == sequence + 1) {
			add(DUPLICATE);
			return XDP_DROP;
		}
		*seen = sequence + 1;
	}
	seen = map_lookup(&highest, &stream);
	if (seen) {
		if (sequence < *seen)
			add(REORDERED);
		else
			*seen = sequence;
	}
	add(RECEIVED);
	if (WATCHED)
		watch(sequence % NETWORKS, time);
	note(time - rest->stamp.sent, rest->stamp.sent);
	return XDP_DROP;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
