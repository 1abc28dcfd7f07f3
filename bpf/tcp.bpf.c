// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* What the kernel's TCP senders do: a record for each acknowledgement, retransmission, and change of state of
 * the connections that are watched. Each program hangs on a tracepoint of its own and does without the others.
 * What the records mean is netstage_live::tcpmon's; `struct record` is also its `Record`. */
#include "kernel.h"

#define KERNEL __attribute__((preserve_access_index))

/* Of the kernel's structures only what is read here; where it stands is told by the running kernel (CO-RE). */
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
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 total_retrans;
	u32 delivered_ce;
	u32 tlp_high_seq;
	u32 lsndtime;
	u32 snd_cwnd_stamp;
	u32 undo_marker;
	u64 bytes_acked;
} KERNEL;

/* Which connections are watched: those that agree with every kind of filter that is set. Zero of a kind: it is
 * not set. */
#define MOST 16
const volatile u32 PORTS = 0;
const volatile u32 ADDRESSES = 0;
const volatile u32 NAMESPACES = 0;
const volatile u32 BY_SOCKET = 0;
const volatile u32 BY_CGROUP = 0;
const volatile u16 PORT[MOST] = {};
const volatile u32 NAMESPACE[MOST] = {};
/* IPv4 as ::ffff:a.b.c.d, in the order of the wire. */
const volatile u64 ADDRESS[MOST * 2] = {};
const volatile u64 ADDRESS_MASK[MOST * 2] = {};



/* Inodes of the sockets of processes that are watched. */
struct {
	NUMBER(type, MAP_HASH);
	NUMBER(max_entries, 65536);
	TYPE(key, u64);
	TYPE(value, u8);
} sockets SECTION(".maps");

struct {
	NUMBER(type, MAP_HASH);
	NUMBER(max_entries, 4096);
	TYPE(key, u64);
	TYPE(value, u8);
} cgroups SECTION(".maps");

struct {
	NUMBER(type, MAP_RINGBUF);
	NUMBER(max_entries, 1 << 24);
} records SECTION(".maps");

/* Records for which there was no room. */
struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} lost SECTION(".maps");

enum kind { ACKNOWLEDGED, RETRANSMITTED, CONGESTION_STATE, CONNECTION_STATE };

struct addresses {
	u64 local[2];
	u64 remote[2];
};

struct record {
	u64 time;
	u64 cookie;
	u64 acknowledged;
	u64 pacing_rate;
	struct addresses addresses;
	u32 namespace;
	u16 local_port;
	u16 remote_port;
	u8 kind;
	/* Of congestion control, and of the connection, where it changes: before and after. */
	u8 state;
	u8 old_state;
	u8 new_state;
	/* It has a model of its own in place of windows that fall for a cause, as BBR does. */
	u32 is_modelled;
	u32 segment;
	u32 cwnd;
	u32 ssthresh;
	u32 peer_window;
	u32 outstanding;
	u32 unsent;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 smoothed_round_trip_us;
	u32 min_round_trip_us;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 retransmissions;
	u32 delivered_ce;
	u32 tlp_high_seq;
	/* Jiffies. */
	u32 last_sent;
	u32 cwnd_changed;
	u32 timeout;
	u32 undo_marker;
};

#define DEPTH 16
struct turn {
	struct record record;
	/* Whence congestion control was told; zeros follow the last. */
	u64 stack[DEPTH];
};

static u64 (*const ktime_get_ns)(void) = (void *)5;
static u64 (*const get_socket_cookie)(void *sk) = (void *)46;
static long (*const get_stack)(void *context, void *to, u32 bytes, u64 flags) = (void *)67;
static void *(*const ringbuf_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *record, u64 flags) = (void *)132;
static struct tcp_sock *(*const skc_to_tcp_sock)(void *sk) = (void *)137;

/* The reader looks by itself: waking it for each record would cost more than the record. */
#define NO_WAKEUP 1
#define INET 2
#define TCP 6
#define ESTABLISHED 1
#define CLOSED 7

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
	u64 inode = sk->sk_socket->file->f_inode->i_ino;

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

INLINE u8 congestion_state(struct tcp_sock *tcp)
{
	struct inet_connection_sock *connection = &tcp->inet_conn;
	u32 offset = __builtin_preserve_field_info(connection->icsk_ca_state, 0);
	u32 left = __builtin_preserve_field_info(connection->icsk_ca_state, 4);
	u32 right = __builtin_preserve_field_info(connection->icsk_ca_state, 5);
	void *word = (void *)connection + offset;
	u64 bits = 0;

	switch (__builtin_preserve_field_info(connection->icsk_ca_state, 1)) {
	case 1:
		bits = *(u8 *)word;
		break;
	case 2:
		bits = *(u16 *)word;
		break;
	case 4:
		bits = *(u32 *)word;
		break;
	case 8:
		bits = *(u64 *)word;
		break;
	}
	return bits << left >> right;
}

INLINE void fill(struct record *record, struct sock *sk, struct tcp_sock *tcp, enum kind kind)
{
	record->time = ktime_get_ns();
	record->cookie = get_socket_cookie(sk);
	record->acknowledged = tcp->bytes_acked;
	record->pacing_rate = sk->sk_pacing_rate;
	find_addresses(sk, &record->addresses);
	record->namespace = sk->__sk_common.skc_net.net->ns.inum;
	record->local_port = sk->__sk_common.skc_num;
	record->remote_port = to_host16(sk->__sk_common.skc_dport);
	record->kind = kind;
	record->state = congestion_state(tcp);
	record->old_state = 0;
	record->new_state = 0;
	record->is_modelled = tcp->inet_conn.icsk_ca_ops->cong_control != 0;
	record->segment = tcp->mss_cache;
	record->cwnd = tcp->snd_cwnd;
	record->ssthresh = tcp->snd_ssthresh;
	record->peer_window = tcp->snd_wnd;
	record->outstanding = tcp->snd_nxt - tcp->snd_una;
	record->unsent = tcp->write_seq - tcp->snd_nxt;
	record->packets_out = tcp->packets_out;
	record->sacked_out = tcp->sacked_out;
	record->lost_out = tcp->lost_out;
	record->retrans_out = tcp->retrans_out;
	record->smoothed_round_trip_us = tcp->srtt_us >> 3;
	record->min_round_trip_us = tcp->rtt_min.s[0].v;
	record->rate_delivered = tcp->rate_delivered;
	record->rate_interval_us = tcp->rate_interval_us;
	record->retransmissions = tcp->total_retrans;
	record->delivered_ce = tcp->delivered_ce;
	record->tlp_high_seq = tcp->tlp_high_seq;
	record->last_sent = tcp->lsndtime;
	record->cwnd_changed = tcp->snd_cwnd_stamp;
	record->timeout = tcp->inet_conn.icsk_rto;
	record->undo_marker = tcp->undo_marker;
}

INLINE void count_lost(void)
{
	u32 key = 0;
	u64 *count = map_lookup(&lost, &key);

	if (count)
		(*count)++;
}

INLINE void emit(struct sock *sk, struct tcp_sock *tcp, enum kind kind, u8 old_state, u8 new_state)
{
	struct record *record = ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		count_lost();
		return;
	}
	fill(record, sk, tcp, kind);
	record->old_state = old_state;
	record->new_state = new_state;
	ringbuf_submit(record, NO_WAKEUP);
}

/* A segment arrived at an established connection; nothing of it was looked at yet. */
SECTION("tp_btf/tcp_probe") int tcp_probe(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tcp = skc_to_tcp_sock(sk);

	if (tcp && (tcp->packets_out || tcp->write_seq != tcp->snd_nxt) && is_watched(sk))
		emit(sk, tcp, ACKNOWLEDGED, 0, 0);
	return 0;
}

SECTION("tp_btf/tcp_retransmit_skb") int tcp_retransmit_skb(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tcp = skc_to_tcp_sock(sk);

	if (tcp && is_watched(sk))
		emit(sk, tcp, RETRANSMITTED, 0, 0);
	return 0;
}

SECTION("tp_btf/tcp_cong_state_set") int tcp_cong_state_set(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tcp = skc_to_tcp_sock(sk);
	struct turn *turn;

	if (!tcp || !is_watched(sk))
		return 0;
	turn = ringbuf_reserve(&records, sizeof(*turn), 0);
	if (!turn) {
		count_lost();
		return 0;
	}
	fill(&turn->record, sk, tcp, CONGESTION_STATE);
	turn->record.new_state = (u8)arguments[1];
	/* What the helper does not fill it zeroes. */
	get_stack(arguments, turn->stack, sizeof(turn->stack), 0);
	ringbuf_submit(turn, NO_WAKEUP);
	return 0;
}

SECTION("tp_btf/inet_sock_set_state") int inet_sock_set_state(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	int old_state = (int)arguments[1], new_state = (int)arguments[2];
	struct tcp_sock *tcp;

	if (sk->sk_protocol != TCP || (new_state != ESTABLISHED && new_state != CLOSED))
		return 0;
	tcp = skc_to_tcp_sock(sk);
	if (tcp && is_watched(sk))
		emit(sk, tcp, CONNECTION_STATE, old_state, new_state);
	return 0;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
