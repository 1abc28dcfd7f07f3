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

/* Kinds of faults of a packet, in the order of netstage_tester::fault::FaultKind. Those before CONTENTS are
 * differences of a packet's bytes; a packet can have several. */
enum fault {
	WRONG_MAC,
	WRONG_DEPTH,
	WRONG_LABEL,
	WRONG_LABEL_CLASS,
	WRONG_LABEL_TTL,
	WRONG_CLASS,
	WRONG_LENGTH,
	WRONG_IDENTIFICATION,
	WRONG_FRAGMENT,
	WRONG_TTL,
	WRONG_CHECKSUM,
	WRONG_SOURCE,
	WRONG_DESTINATION,
	WRONG_PORTS,
	WRONG_UDP_CHECKSUM,
	TRUNCATED,
	APPENDED,
	WRONG_PAYLOAD,
	CONTENTS,
	STRAY = CONTENTS,
	RETURNED,
	DUPLICATE,
	REORDERED,
	LATE,
	FAULTS,
};

/* Counters of `counts`: one per kind of fault, then correct packets, and packets with wrong contents. */
#define RECEIVED FAULTS
#define WRONG (FAULTS + 1)
#define COUNTS (FAULTS + 2)

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
/* Maximum bytes of a stored frame. */
#define SAMPLE 2048
/* Maximum number of pairs of a network and a kind of fault that are counted separately. */
#define FAULTY_NETWORKS 65536

struct per_second {
	u64 frames;
	u64 delay;
};

struct octave {
	u64 times[1 << FINE];
};

/* First frame with a kind of fault: its whole length, the number of bytes that follow, and its arrival. */
struct sample {
	u32 length;
	u32 stored;
	u64 time;
	u8 bytes[SAMPLE];
};

/* Packets of a stream to a network with a kind of fault; FAULTS stands for all with wrong contents. */
struct faulty {
	u32 network;
	u16 kind;
	u16 stream;
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

/* Arrival of the first packet to a network after the event, of its last packet, and the longest time between two packets
 * of which the second arrived after the event, with the arrival of that second packet. */
struct arrival {
	u64 first;
	u64 last;
	u64 gap;
	u64 gap_end;
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

/* One entry for each kind of fault. */
struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, FAULTS);
	TYPE(key, u32);
	TYPE(value, struct sample);
} samples SECTION(".maps");

struct {
	NUMBER(type, MAP_HASH);
	NUMBER(map_flags, MAP_NO_PREALLOCATION);
	NUMBER(max_entries, FAULTY_NETWORKS);
	TYPE(key, struct faulty);
	TYPE(value, u64);
} faulty SECTION(".maps");

/* Correct packets to each network. */
struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(map_flags, MAP_MMAPABLE);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} received SECTION(".maps");

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
/* Stream that is sent from this port, or NO_STREAM. */
#define NO_STREAM 0xff
const volatile u8 OWN_STREAM = NO_STREAM;
/* Delay in nanoseconds after which a packet is late, and does not count as received. */
const volatile u64 MOST_DELAY = ~0ULL;
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
/* Flag of `map_update`: only a key that is not in the map. */
#define ADD_ONLY 1
static long (*const xdp_adjust_tail)(struct xdp_md *frame, int bytes) = (void *)65;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const load_bytes)(struct xdp_md *frame, u32 offset, void *to, u32 length) = (void *)189;

struct udp {
	u32 ports;
	u16 length;
	u16 checksum;
} __attribute__((packed));

/* Content of every frame of a trial: 18 bytes, for which the smallest Ethernet frame has room. */
#define SIGNATURE 0x5354
/* Trial of the frames whose departure shows that an interface can send (netstage_tester::generator_choice). */
#define PROBE 0xffff
struct stamp {
	u16 signature;
	u16 trial;
	u8 stream;
	/* Parity of the other bytes, in which a flipped bit shows. */
	u8 parity;
	u32 sequence;
	u64 sent;
} __attribute__((packed));

struct rest {
	struct udp udp;
	struct stamp stamp;
} __attribute__((packed));

INLINE void add(u32 key)
{
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

/* Returns the UDP checksum over IPv6 as sent: the bytes after the stamp add zero. */
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

/* Returns the parity byte of a stamp whose parity byte is zero. */
INLINE u8 parity_of(const struct stamp *stamp)
{
	u32 parity = 0;

#pragma unroll
	for (u32 word = 0; word < sizeof(*stamp) / 2; word++)
		parity ^= ((const u16 *)stamp)[word];
	return parity ^ parity >> 8;
}

/* The payload after the stamp consists of pairs of a word and its complement, whose checksum is zero. The words count up
 * by STEP from one that depends on the stamp. Fewer than 16 bytes at the end are zero. */
#define STEP 0x9e3779b97f4a7c15ULL
#define PAIR 16
#define CHUNK (4 * PAIR)
/* Chunks of the largest packet. */
#define MOST_CHUNKS 141
/* Limit of the position of a frame's last pair. */
#define LONGEST 0x3fff
/* Limit of the bytes before the payload that follows the stamp: at most 14 + 16 + 40 + 8 + 18. */
#define MOST_HEADERS 127

/* Not packed, because clang would then read single bytes; the kernel accepts words at any address of a packet. */
struct words {
	u64 word[CHUNK / 8];
};

struct pair {
	u64 word[PAIR / 8];
};

INLINE u64 payload_of(const struct stamp *stamp)
{
	u64 number = (u64)stamp->sequence << 32 | (u32)stamp->trial << 16 | stamp->stream;

	return (number ^ stamp->sent) * STEP;
}

/* Moves to the byte of a frame after `bytes`, at least 8, of headers. The verifier lets only the constant part of 8 bytes be
 * subtracted again. */
INLINE u8 *after_headers(u8 *frame, u32 bytes)
{
	frame += (bytes - sizeof(u64)) & MOST_HEADERS;
	OPAQUE(frame);
	return frame + sizeof(u64);
}

/* Writes the pairs of the payload that follows `from` bytes. The verifier checks a function that is not static once,
 * instead of once for each path to its call. */
GLOBAL int fill(struct xdp_md *frame, u32 from, u64 word)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *at = after_headers((void *)(u64)frame->data, from);

#pragma clang loop unroll(disable)
	for (int chunk = 0; chunk < MOST_CHUNKS; chunk++) {
		struct words *words = (void *)at;

		if ((void *)(words + 1) > end)
			break;
#pragma unroll
		for (u32 pair = 0; pair < CHUNK / PAIR; pair++, word += STEP) {
			words->word[2 * pair] = word;
			words->word[2 * pair + 1] = ~word;
		}
		at += CHUNK;
	}
#pragma clang loop unroll(disable)
	for (u32 pair = 0; pair < CHUNK / PAIR - 1; pair++) {
		struct words *words = (void *)at;

		if ((void *)(at + PAIR) > end)
			break;
		words->word[0] = word;
		words->word[1] = ~word;
		word += STEP;
		at += PAIR;
	}
	return 0;
}

/* Returns whether the last `length` bytes of the payload, at most PAIR - 1, are not zero. Bytes precede them. */
INLINE int ends_differently(u8 *at, void *end, u64 length)
{
	u64 *last = (void *)(at - sizeof(*last) + (length & (PAIR - 1)));

	if ((void *)(last + 1) > end)
		return 1;
	/* In the memory order of this machine, the last bytes are the upper ones. */
	if (length < sizeof(*last))
		return *last >> 1 >> (63 - 8 * length) != 0;
	OPAQUE(end);
	if ((void *)(at + sizeof(*last)) > end)
		return 1;
	return (*last | *(u64 *)at) != 0;
}

/* Returns whether the `length` bytes of payload after `from` bytes differ from those written. */
GLOBAL int differs(struct xdp_md *frame, u32 from, u32 length, u64 word)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *at = after_headers((void *)(u64)frame->data, from);
	u64 wrong = 0;

#pragma clang loop unroll(disable)
	for (int chunk = 0; chunk < MOST_CHUNKS; chunk++) {
		struct words *words = (void *)at;

		if (length < CHUNK)
			break;
		OPAQUE(end);
		if ((void *)(words + 1) > end)
			return 1;
#pragma unroll
		for (u32 pair = 0; pair < CHUNK / PAIR; pair++, word += STEP) {
			wrong |= words->word[2 * pair] ^ word;
			wrong |= words->word[2 * pair + 1] ^ ~word;
		}
		at += CHUNK;
		length -= CHUNK;
	}
#pragma clang loop unroll(disable)
	for (u32 pair = 0; pair < CHUNK / PAIR - 1; pair++) {
		struct words *words = (void *)at;

		if (length < PAIR)
			break;
		OPAQUE(end);
		if ((void *)(at + PAIR) > end)
			return 1;
		wrong |= words->word[0] ^ word;
		wrong |= words->word[1] ^ ~word;
		word += STEP;
		at += PAIR;
		length -= PAIR;
	}
	return wrong || ends_differently(at, end, length);
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
	struct pair *last;
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
	last = (void *)(ethernet + ((headers + length - PAIR) & LONGEST));
	if ((void *)(last + 1) > end)
		return XDP_DROP;
	/* Its memory held an earlier frame, as changed by the router: all bytes are written again. */
	last->word[0] = last->word[1] = 0;
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
	rest->stamp.parity = 0;
	rest->stamp.sequence = (u32)made->sequence;
	made->last = now();
	rest->stamp.sent = made->last;
	rest->stamp.parity = parity_of(&rest->stamp);
	fill(frame, headers + IP_BYTES + sizeof(*rest), payload_of(&rest->stamp));
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

/* Counts a packet with a kind of fault by its network. */
INLINE void add_faulty(u32 kind, u32 network, u32 stream)
{
	struct faulty key = { .network = network, .kind = kind, .stream = stream };
	u64 one = 1, *count = map_lookup(&faulty, &key);

	/* Another processor may add the entry at the same time. */
	if (!count && !map_update(&faulty, &key, &one, ADD_ONLY))
		return;
	if (!count)
		count = map_lookup(&faulty, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Counts a packet with a kind of fault, and keeps the first. */
GLOBAL int add_fault(struct xdp_md *frame, u32 kind, u32 network, u32 stream)
{
	u64 length = (u64)frame->data_end - (u64)frame->data, stored = length < SAMPLE ? length : SAMPLE;
	struct sample *sample = map_lookup(&samples, &kind);

	add(kind);
	add_faulty(kind, network, stream);
	if (!sample || sample->stored)
		return 0;
	OPAQUE(stored);
	if (stored < 1 || stored > SAMPLE)
		return 0;
	sample->length = (u32)length;
	sample->stored = (u32)stored;
	sample->time = now();
	return (int)load_bytes(frame, 0, sample->bytes, (u32)stored);
}

/* Counts a packet with wrong contents, once in total and once for each kind. */
GLOBAL int add_wrong(struct xdp_md *frame, u32 kinds, u32 network, u32 stream)
{
	add(WRONG);
	add_faulty(FAULTS, network, stream);
#pragma clang loop unroll(disable)
	for (u32 kind = 0; kind < CONTENTS; kind++) {
		if (kinds >> kind & 1)
			add_fault(frame, kind, network, stream);
	}
	return 0;
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
	if (trial->event && !arrival->first)
		arrival->first = time;
	if (trial->event && arrival->last && time > arrival->last && time - arrival->last > arrival->gap) {
		arrival->gap = time - arrival->last;
		arrival->gap_end = time;
	}
	arrival->last = time;
}

/* Returns the bit of a kind of fault if a value of at most 32 bits is not zero. There is no branch, because the verifier
 * follows every combination of branches. */
#define FAULT(kind, value) ((u32)(((u64)(u32)(value) + 0xffffffffULL) >> 32) << (kind))

/* Returns the kinds of faults of an IPv4 header. Lengths, checksum and destination are zero in the template. */
INLINE u32 wrong_ipv4(struct ipv4 *ip, const volatile struct source *source, u32 network, u32 length)
{
	const volatile struct ipv4 *expected = (void *)IP_HEADER;
	u32 kinds = 0;

	kinds |= FAULT(WRONG_CLASS, ip->class ^ expected->class);
	kinds |= FAULT(WRONG_LENGTH, ip->length ^ to_host16(length));
	kinds |= FAULT(WRONG_IDENTIFICATION, ip->identification ^ expected->identification);
	kinds |= FAULT(WRONG_FRAGMENT, ip->fragment ^ expected->fragment);
	kinds |= FAULT(WRONG_TTL, ip->ttl ^ expected->ttl);
	kinds |= FAULT(WRONG_CHECKSUM, sum_of(ip) ^ 0xffff);
	kinds |= FAULT(WRONG_SOURCE, ip->source ^ source->words[0]);
	kinds |= FAULT(WRONG_DESTINATION, ip->destination ^ to_host32((u32)destination_of(network)));
	return kinds;
}

/* Traffic class and flow label in memory byte order. */
#define CLASS6 0x0000f00fu
#define FLOW6 0xffff0f00u

/* Returns the kinds of faults of an IPv6 header and the UDP checksum. */
INLINE u32 wrong_ipv6(struct ipv6 *ip, struct rest *rest, const volatile struct source *source, u32 network, u32 length)
{
	const volatile struct ipv6 *expected = (void *)IP_HEADER;
	u32 changed = ip->class_and_flow ^ expected->class_and_flow, kinds = 0, other = 0;
	u64 to = ip->destination[0] ^ to_host64(destination_of(network));

	kinds |= FAULT(WRONG_CLASS, changed & CLASS6);
	kinds |= FAULT(WRONG_IDENTIFICATION, changed & FLOW6);
	kinds |= FAULT(WRONG_LENGTH, ip->length ^ to_host16(length - sizeof(*ip)));
	kinds |= FAULT(WRONG_TTL, ip->hops ^ expected->hops);
#pragma unroll
	for (int word = 0; word < 4; word++)
		other |= ip->source[word] ^ source->words[word];
	kinds |= FAULT(WRONG_SOURCE, other);
	to |= ip->destination[1] ^ to_host64((u64)HOST);
	kinds |= FAULT(WRONG_DESTINATION, (u32)to | (u32)(to >> 32));
	/* A wrong address or port changes the sum, too; a router does not compute it. */
	if (!kinds)
		kinds |= FAULT(WRONG_UDP_CHECKSUM, sum_of_ipv6(ip, rest) ^ 0xffff);
	return kinds;
}

/* Returns the kinds of faults of the labels. The packet has `depth` of them. */
INLINE u32 wrong_labels(u8 *ethernet, u32 depth, u32 network)
{
	u32 kinds = FAULT(WRONG_DEPTH, depth != LABELS);

	if (kinds)
		return kinds;
#pragma unroll
	for (u32 label = 0; label < MOST_LABELS; label++) {
		u32 changed;

		if (label >= LABELS)
			break;
		changed = to_host32(*(u32 *)(ethernet + ETHERNET + label * LABEL)) ^ label_of(label, network);
		kinds |= FAULT(WRONG_LABEL, changed >> 12);
		kinds |= FAULT(WRONG_LABEL_CLASS, changed & 0xe00);
		kinds |= FAULT(WRONG_LABEL_TTL, changed & 0xff);
	}
	return kinds;
}

/* Returns the kinds of faults of a packet with a correct stamp. */
INLINE u32 faults_of(struct xdp_md *frame, u8 *ethernet, void *ip, struct rest *rest, u32 depth)
{
	u32 network = rest->stamp.sequence % NETWORKS, length = (u32)((u64)frame->data_end - (u64)ip);
	u32 expected = length_of(rest->stamp.sequence), kinds, other = 0;
	const volatile struct source *source = &SOURCES[(u8)(rest->stamp.stream - STREAM) & (MOST_STREAMS - 1)];

#pragma unroll
	for (int word = 0; word < ETHERNET / 2 - 1; word++)
		other |= ((u16 *)ethernet)[word] ^ ETHERNET_HEADER[word];
	kinds = FAULT(WRONG_MAC, other) | wrong_labels(ethernet, depth, network);
	kinds |= IS_IPV6 ? wrong_ipv6(ip, rest, source, network, expected) : wrong_ipv4(ip, source, network, expected);
	kinds |= FAULT(WRONG_PORTS, rest->udp.ports ^ UDP_PORTS);
	kinds |= FAULT(WRONG_LENGTH, rest->udp.length ^ to_host16(expected - IP_BYTES));
	if (!IS_IPV6)
		kinds |= FAULT(WRONG_UDP_CHECKSUM, rest->udp.checksum);
	if (length < expected)
		return kinds | 1U << TRUNCATED;
	kinds |= FAULT(APPENDED, length > expected);
	length = (u32)((u64)(rest + 1) - (u64)ethernet);
	expected -= IP_BYTES + sizeof(*rest);
	return kinds | FAULT(WRONG_PAYLOAD, differs(frame, length, expected, payload_of(&rest->stamp)));
}

/* Returns whether a header is that of UDP over IP without options. */
INLINE int is_udp(void *ip)
{
	if (IS_IPV6)
		return *(u8 *)ip >> 4 == 6 && ((struct ipv6 *)ip)->next == UDP;
	return ((struct ipv4 *)ip)->version_and_length == 0x45 && ((struct ipv4 *)ip)->protocol == UDP;
}

/* Returns the network of a packet's destination, or NETWORKS if it is none of the test's. */
INLINE u32 network_of(void *ip)
{
	u64 number = IS_IPV6 ? to_host64(((struct ipv6 *)ip)->destination[0]) : to_host32(((struct ipv4 *)ip)->destination);

	number -= FIRST;
	if (number & ((1ULL << NETWORK_BIT) - 1) || number >> NETWORK_BIT >= NETWORKS)
		return NETWORKS;
	return (u32)(number >> NETWORK_BIT);
}

/* Returns whether a packet without a readable stamp has an address pair of the test. */
INLINE int is_between(void *ip)
{
	int found = 0;

#pragma unroll
	for (u32 stream = 0; stream < MOST_STREAMS; stream++) {
		u32 other = IS_IPV6 ? 0 : ((struct ipv4 *)ip)->source ^ SOURCES[stream].words[0];

		if (stream >= STREAMS)
			break;
#pragma unroll
		for (int word = 0; word < 4 && IS_IPV6; word++)
			other |= ((struct ipv6 *)ip)->source[word] ^ SOURCES[stream].words[word];
		found |= !other;
	}
	return found && network_of(ip) < NETWORKS;
}

/* Counts a packet of the trial that arrived at the wrong port. */
INLINE int misplaced(struct xdp_md *frame, struct stamp *stamp)
{
	u32 kind = stamp->stream == OWN_STREAM ? RETURNED : STRAY;

	add_fault(frame, kind, stamp->sequence % NETWORKS, stamp->stream);
	return XDP_DROP;
}

/* Counts a packet without a correct stamp, if it is one of the test. */
INLINE int unstamped(struct xdp_md *frame, void *ip, u32 kind)
{
	if (!is_between(ip))
		return XDP_PASS;
	add_wrong(frame, 1U << kind, network_of(ip), STREAM);
	return XDP_DROP;
}

/* Counts a correct packet, unless it is late or a duplicate. */
INLINE int accept(struct xdp_md *frame, struct stamp *stamp, u64 time)
{
	u32 sequence = stamp->sequence, number = (u8)(stamp->stream - STREAM), network = sequence % NETWORKS;
	u32 key = (sequence * STREAMS + number) & (REMEMBERED - 1), stream = stamp->stream;
	u32 *seen = map_lookup(&remembered, &key);
	u64 sent = stamp->sent, *count;

	if (time - sent > MOST_DELAY) {
		add_fault(frame, LATE, network, stream);
		return XDP_DROP;
	}
	if (seen) {
		if (*seen == sequence + 1) {
			add_fault(frame, DUPLICATE, network, stream);
			return XDP_DROP;
		}
		*seen = sequence + 1;
	}
	seen = map_lookup(&highest, &number);
	if (seen) {
		if (sequence < *seen)
			add_fault(frame, REORDERED, network, stream);
		else
			*seen = sequence;
	}
	add(RECEIVED);
	count = map_lookup(&received, &network);
	if (count)
		__sync_fetch_and_add(count, 1);
	if (WATCHED)
		watch(network, time);
	note(time - sent, sent);
	return XDP_DROP;
}

SECTION("xdp") int receive(struct xdp_md *frame)
{
	void *end = (void *)(u64)frame->data_end;
	u8 *ethernet = (void *)(u64)frame->data;
	u32 at = ETHERNET, depth = 0, stream, kinds;
	struct rest *rest;
	u64 time = now();
	void *ip;

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
	if ((void *)rest > end || !is_udp(ip))
		return XDP_PASS;
	if ((void *)(rest + 1) > end)
		return unstamped(frame, ip, TRUNCATED);
	if (rest->stamp.signature != SIGNATURE || parity_of(&rest->stamp))
		return unstamped(frame, ip, WRONG_PAYLOAD);
	if (rest->stamp.trial != TRIAL) {
		if (rest->stamp.trial != PROBE)
			add_fault(frame, LATE, rest->stamp.sequence % NETWORKS, rest->stamp.stream);
		return XDP_DROP;
	}
	stream = (u8)(rest->stamp.stream - STREAM);
	if (stream >= STREAMS || rest->stamp.sequence % NETWORKS % PEERS % PORTS != PORT)
		return misplaced(frame, &rest->stamp);
	kinds = faults_of(frame, ethernet, ip, rest, depth);
	if (kinds) {
		add_wrong(frame, kinds, rest->stamp.sequence % NETWORKS, rest->stamp.stream);
		return XDP_DROP;
	}
	return accept(frame, &rest->stamp, time);
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
