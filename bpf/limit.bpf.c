// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Limits the windows of TCP connections, and reports their state. For existing connections, the kernel runs the
 * iterator `limit_tcp` on every connection of a namespace at each read. For new connections of a cgroup,
 * `limit_new` is called before their first segment. The previous limits are stored, to be restored later.
 * Layouts are those of netstage_tcp_watch::limit. */
#include "tcp.h"

/* Requested limits; zero leaves a window alone. */
struct order {
	/* Congestion window in segments. */
	u32 cwnd;
	/* Advertised window in bytes. */
	u32 window;
	/* Restore the previous limits instead. */
	u32 is_undo;
	u32 unused;
};

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct order);
} orders SECTION(".maps");

/* Previous limits of each limited socket, by its cookie: of the congestion window and of the advertised window.
 * Zero: the window was left alone. */
struct before {
	u32 cwnd;
	u32 window;
};

struct {
	NUMBER(type, MAP_HASH);
	NUMBER(max_entries, 65536);
	TYPE(key, u64);
	TYPE(value, struct before);
} limited SECTION(".maps");

/* State of a connection. */
struct standing {
	u64 cookie;
	struct addresses addresses;
	u16 local_port;
	u16 remote_port;
	u32 segment;
	u32 cwnd;
	u32 cwnd_limit;
	u32 peer_window;
	u32 own_window;
	u32 own_window_limit;
	/* Value of enum tcp_state. */
	u32 state;
};

struct iterator {
	void *meta;
	struct sock *sk;
};

static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static long (*const setsockopt)(void *sk, int level, int option, void *value, int length) = (void *)49;
static long (*const seq_write)(void *sequence, const void *data, u32 length) = (void *)127;

#define IF_NEW 1
#define TCP_LEVEL 6
#define WINDOW_CLAMP 10
#define BPF_SNDCWND_CLAMP 1002
#define UNLIMITED 0x7fffffff
/* Value that means no limit to a listening socket; zero, its initial value, cannot be set. */
#define UNCLAMPED (0xffff << 14)

/* The part of struct bpf_sock_ops of linux/bpf.h that is read. */
struct sock_ops {
	u32 operation;
	u32 unused[45];
	struct sock *sk;
};

/* Calls before a connection's first segment, after its establishment, and at the start of listening. */
enum { CONNECTS = 3, CONNECTED = 4, ACCEPTED = 5, LISTENS = 11 };

struct bpf_iter_meta {
	void *seq;
} KERNEL;

INLINE void put_back(struct tcp_sock *tcp, u64 cookie)
{
	struct before *before = map_lookup(&limited, &cookie);
	int value;

	if (!before)
		return;
	if (before->cwnd) {
		value = before->cwnd > UNLIMITED ? UNLIMITED : before->cwnd;
		setsockopt(tcp, TCP_LEVEL, BPF_SNDCWND_CLAMP, &value, sizeof(value));
	}
	if (before->window) {
		value = before->window;
		setsockopt(tcp, TCP_LEVEL, WINDOW_CLAMP, &value, sizeof(value));
	}
	map_delete(&limited, &cookie);
}

/* `target` is the connection as the kernel expects it at this call site. */
INLINE void limit(void *target, struct tcp_sock *tcp, u64 cookie, struct order *order)
{
	struct before before = {};
	int value;

	if (order->cwnd)
		before.cwnd = tcp->snd_cwnd_clamp;
	if (order->window)
		before.window = tcp->window_clamp ? tcp->window_clamp : UNCLAMPED;
	map_update(&limited, &cookie, &before, IF_NEW);
	/* Setting it also sets the slow-start threshold, which a loss may have lowered since. */
	if (order->cwnd && tcp->snd_cwnd_clamp != order->cwnd) {
		value = order->cwnd;
		setsockopt(target, TCP_LEVEL, BPF_SNDCWND_CLAMP, &value, sizeof(value));
	}
	/* The kernel raises it with the receive buffer. */
	if (order->window && (tcp->window_clamp > order->window || !tcp->window_clamp)) {
		value = order->window;
		setsockopt(target, TCP_LEVEL, WINDOW_CLAMP, &value, sizeof(value));
	}
}

SECTION("iter/tcp") int limit_tcp(struct iterator *at)
{
	struct sock *sk = at->sk;
	struct standing standing = {};
	struct tcp_sock *tcp;
	struct order *order;
	u32 key = 0;

	if (!sk)
		return 0;
	order = map_lookup(&orders, &key);
	tcp = skc_to_tcp_sock(sk);
	if (!tcp || !order)
		return 0;
	standing.cookie = get_socket_cookie(sk);
	if (order->is_undo) {
		put_back(tcp, standing.cookie);
		return 0;
	}
	sk = (struct sock *)tcp;
	if (!is_watched(sk))
		return 0;
	limit(tcp, tcp, standing.cookie, order);
	find_addresses(sk, &standing.addresses);
	standing.local_port = sk->__sk_common.skc_num;
	standing.remote_port = to_host16(sk->__sk_common.skc_dport);
	standing.segment = tcp->mss_cache;
	standing.cwnd = tcp->snd_cwnd;
	standing.cwnd_limit = tcp->snd_cwnd_clamp;
	standing.peer_window = tcp->snd_wnd;
	standing.own_window = tcp->rcv_wnd;
	standing.own_window_limit = tcp->window_clamp;
	standing.state = sk->__sk_common.skc_state;
	seq_write(((struct bpf_iter_meta *)at->meta)->seq, &standing, sizeof(standing));
	return 0;
}

SECTION("sockops") int limit_new(struct sock_ops *call)
{
	struct tcp_sock *tcp;
	struct order *order;
	u32 key = 0;

	switch (call->operation) {
	case CONNECTS:
	case CONNECTED:
	case ACCEPTED:
	case LISTENS:
		break;
	default:
		return 0;
	}
	order = map_lookup(&orders, &key);
	if (!order || order->is_undo || !call->sk)
		return 0;
	tcp = skc_to_tcp_sock(call->sk);
	if (tcp && is_watched((struct sock *)tcp))
		limit(call, tcp, get_socket_cookie((struct sock *)call), order);
	return 0;
}

char LICENSE[] SECTION("license") = "Dual BSD/GPL";
