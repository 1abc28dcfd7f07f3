/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* The kernel's TCP connections, and the filter that selects them. */
#pragma once
#include "kernel.h"

#define KERNEL __attribute__((preserve_access_index))

/* Members of the kernel's structures that are read here; their offsets come from the running kernel (CO-RE). */
struct ns_common {
	u32 inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		u8 u6_addr8[16];
	} in6_u;
} KERNEL;

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	u8 skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} KERNEL;

struct inode {
	unsigned long i_ino;
} KERNEL;

struct file {
	struct inode *f_inode;
} KERNEL;

struct socket {
	unsigned long flags;
	struct file *file;
} KERNEL;

struct kernfs_node {
	u64 id;
} KERNEL;

struct cgroup {
	struct kernfs_node *kn;
} KERNEL;

struct sock_cgroup_data {
	struct cgroup *cgroup;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	unsigned long sk_pacing_rate;
	u16 sk_protocol;
	/* Newer kernels also have the inode number here. */
	unsigned long sk_ino;
	struct sock_cgroup_data sk_cgrp_data;
} KERNEL;

struct tcp_congestion_ops {
	void *cong_control;
} KERNEL;

struct inet_connection_sock {
	u32 icsk_rto;
	const struct tcp_congestion_ops *icsk_ca_ops;
	u8 icsk_ca_state : 5;
} KERNEL;

struct minmax_sample {
	u32 v;
} KERNEL;

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

struct tcp_rack {
	u32 rtt_us;
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_wnd;
	u32 mss_cache;
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 srtt_us;
	struct minmax rtt_min;
	struct tcp_rack rack;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 total_retrans;
	u32 delivered_ce;
	u32 tlp_high_seq;
	u32 lsndtime;
	u32 snd_cwnd_stamp;
	u32 snd_cwnd_clamp;
	u32 window_clamp;
	u32 rcv_wnd;
	u32 undo_marker;
	u64 bytes_acked;
} KERNEL;

/* Filter of watched connections, which must match every kind of criterion that is set. Zero: the kind is not
 * set. */
#define MOST 16
const volatile u32 PORTS = 0;
const volatile u32 ADDRESSES = 0;
const volatile u32 NAMESPACES = 0;
const volatile u32 BY_SOCKET = 0;
const volatile u32 BY_CGROUP = 0;
const volatile u16 PORT[MOST] = {};
const volatile u32 NAMESPACE[MOST] = {};
/* IPv4 as ::ffff:a.b.c.d, in network byte order. */
const volatile u64 ADDRESS[MOST * 2] = {};
const volatile u64 ADDRESS_MASK[MOST * 2] = {};



/* Inodes of the sockets of watched processes. */
struct {
	NUMBER(type, MAP_HASH);
	NUMBER(max_entries, 65536);
	TYPE(key, u64);
	TYPE(value, u8);
} sockets SECTION(".maps");

/* Bit per inode, by its lowest bits, which excludes most others without a hash lookup. */
#define SOCKET_WORDS 1024
struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, SOCKET_WORDS);
	TYPE(key, u32);
	TYPE(value, u64);
} socket_bits SECTION(".maps");

struct {
	NUMBER(type, MAP_HASH);
	NUMBER(max_entries, 4096);
	TYPE(key, u64);
	TYPE(value, u8);
} cgroups SECTION(".maps");

struct addresses {
	u64 local[2];
	u64 remote[2];
};

static u64 (*const get_socket_cookie)(void *sk) = (void *)46;
static struct tcp_sock *(*const skc_to_tcp_sock)(void *sk) = (void *)137;

#define INET 2

INLINE void find_addresses(struct sock *sk, struct addresses *to)
{
	struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == INET) {
		to->local[0] = to->remote[0] = 0;
		to->local[1] = (u64)common->skc_rcv_saddr << 32 | 0xffff0000;
		to->remote[1] = (u64)common->skc_daddr << 32 | 0xffff0000;
		return;
	}
	to->local[0] = *(u64 *)&common->skc_v6_rcv_saddr.in6_u.u6_addr8[0];
	to->local[1] = *(u64 *)&common->skc_v6_rcv_saddr.in6_u.u6_addr8[8];
	to->remote[0] = *(u64 *)&common->skc_v6_daddr.in6_u.u6_addr8[0];
	to->remote[1] = *(u64 *)&common->skc_v6_daddr.in6_u.u6_addr8[8];
}

INLINE int has_port(struct sock *sk)
{
	u16 local = sk->__sk_common.skc_num, remote = to_host16(sk->__sk_common.skc_dport);

	for (u32 at = 0; at < MOST && at < PORTS; at++)
		if (PORT[at] == local || PORT[at] == remote)
			return 1;
	return 0;
}

INLINE int is_within(const u64 *address, u32 at)
{
	return (address[0] & ADDRESS_MASK[2 * at]) == ADDRESS[2 * at] &&
	       (address[1] & ADDRESS_MASK[2 * at + 1]) == ADDRESS[2 * at + 1];
}

INLINE int has_address(struct sock *sk)
{
	struct addresses addresses;

	find_addresses(sk, &addresses);
	for (u32 at = 0; at < MOST && at < ADDRESSES; at++)
		if (is_within(addresses.local, at) || is_within(addresses.remote, at))
			return 1;
	return 0;
}

INLINE int has_namespace(struct sock *sk)
{
	u32 namespace = sk->__sk_common.skc_net.net->ns.inum;

	for (u32 at = 0; at < MOST && at < NAMESPACES; at++)
		if (NAMESPACE[at] == namespace)
			return 1;
	return 0;
}

INLINE int has_socket(struct sock *sk)
{
	u64 inode, *bits;
	u32 word;

	if (__builtin_preserve_field_info(sk->sk_ino, 2))
		inode = sk->sk_ino;
	else
		inode = sk->sk_socket->file->f_inode->i_ino;
	word = inode / 64 % SOCKET_WORDS;
	bits = map_lookup(&socket_bits, &word);
	if (!bits || !(*bits >> inode % 64 & 1))
		return 0;
	return map_lookup(&sockets, &inode) != 0;
}

INLINE int has_cgroup(struct sock *sk)
{
	u64 cgroup = 0;

	if (__builtin_preserve_field_info(sk->sk_cgrp_data.cgroup, 2))
		cgroup = sk->sk_cgrp_data.cgroup->kn->id;
	return map_lookup(&cgroups, &cgroup) != 0;
}

INLINE int is_watched(struct sock *sk)
{
	return (!PORTS || has_port(sk)) && (!NAMESPACES || has_namespace(sk)) && (!ADDRESSES || has_address(sk)) &&
	       (!BY_CGROUP || has_cgroup(sk)) && (!BY_SOCKET || has_socket(sk));
}
