// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Records of the kernel's TCP senders: one for each acknowledgment, retransmission and state change of the
 * watched connections. Each program has its own tracepoint and works without the others. netstage_tcp_watch
 * evaluates the records; `struct record` is also its `Record`. */
#include "tcp.h"

struct {
	NUMBER(type, MAP_RINGBUF);
	NUMBER(max_entries, 1 << 24);
} records SECTION(".maps");

/* Records lost because the ring was full. */
struct {
	NUMBER(type, MAP_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} lost SECTION(".maps");

enum kind { ACKNOWLEDGED, RETRANSMITTED, CONGESTION_STATE, CONNECTION_STATE };

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
	/* Congestion state; for a state change also the old and new state. */
	u8 state;
	u8 old_state;
	u8 new_state;
	/* Whether congestion control follows a path model instead of reducing its window for a cause, as BBR does. */
	u16 is_modelled;
	/* Whether the application waits for room in the send buffer. */
	u16 waits_for_buffer;
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
	/* Of the segment delivered last. */
	u32 latest_round_trip_us;
};

#define DEPTH 16
struct turn {
	struct record record;
	/* Call stack of the state change; zeros follow the last entry. */
	u64 stack[DEPTH];
};

static u64 (*const ktime_get_ns)(void) = (void *)5;
static long (*const get_stack)(void *context, void *to, u32 bytes, u64 flags) = (void *)67;
static void *(*const ringbuf_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *record, u64 flags) = (void *)132;

/* The reader polls: waking it for each record would cost more than the record. */
#define NO_WAKEUP 1
#define TCP 6
#define ESTABLISHED 1
#define CLOSED 7
/* Bit of socket.flags (enum in linux/net.h). */
#define SOCK_NOSPACE 2

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
	record->waits_for_buffer = sk->sk_socket->flags >> SOCK_NOSPACE & 1;
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
	record->latest_round_trip_us = tcp->rack.rtt_us;
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

/* A segment arrived at an established connection and was not processed yet. */
SECTION("tp_btf/tcp_probe") int tcp_probe(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tcp;

	/* Filter first: on a busy host most segments belong to other connections. */
	if (!is_watched(sk))
		return 0;
	tcp = skc_to_tcp_sock(sk);
	if (tcp && (tcp->packets_out || tcp->write_seq != tcp->snd_nxt))
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
	/* The helper zeroes unused entries. */
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
