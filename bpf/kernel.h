/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Environment of a program in the kernel: types, helpers by their numbers (linux/bpf.h), and declarations of
 * maps (BTF). Contains only what is used here. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define GLOBAL __attribute__((noinline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Fields of a map's declaration: a number is encoded as the length of an array. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) type *name

enum map_kind {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_ARRAY = 6,
	MAP_LPM_TRIE = 11,
	MAP_DEVMAP = 14,
	MAP_RINGBUF = 27,
};
#define MAP_NO_PREALLOCATION 1
#define MAP_MMAPABLE (1 << 10)

enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const xdp_adjust_head)(struct xdp_md *frame, int bytes) = (void *)44;
static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

/* Length in bytes of an Ethernet header and of a label, and the maximum number of pushed labels. */
#define ETHERNET 14
#define LABEL 4
#define MOST_LABELS 3

struct ipv4 {
	u8 version_and_length;
	u8 class;
	u16 length;
	u16 identification;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 source;
	u32 destination;
} __attribute__((packed));

#define to_host16(value) __builtin_bswap16(value)
#define to_host32(value) __builtin_bswap32(value)
#define to_host64(value) __builtin_bswap64(value)

/* Hides from the compiler what it knows of a number, so that every access to a packet uses the value that was
 * compared with the packet's end, which the kernel's verifier tracks. */
#define OPAQUE(value) asm volatile("" : "+r"(value))
