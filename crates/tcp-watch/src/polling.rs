//! Flows from repeated dumps of the kernel's sockets (sock_diag(7)), for hosts without BPF. Changes between two
//! polls are not seen, so causes are inferred from differences.

use super::filter::{Filter, ProcessFilter};
use super::flows::ChangeOrigin;
use super::reader::BpfReader;
use super::record::{self, RecordKind, TcpRecord};
use netlink_sys::{Socket, SocketAddr as Kernel};
use netstage_core::quantity::BitRate;
use netstage_core::tcp::event::{CongestionState, FlowSnapshot};
use netstage_core::time::Duration;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

/// Interval between polls.
pub const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

const SOCK_DIAG: isize = 4;
const BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const TCP: u8 = 6;
/// Attributes: connection, congestion control, memory, cgroup.
const INFO: u16 = 2;
const CONTROL: u16 = 4;
const MEMORY: u16 = 7;
const CGROUP: u16 = 21;
/// Established, and closing with unsent data.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 8;
/// Size of `struct inet_diag_msg` in bytes.
const MESSAGE: usize = 72;

/// Polls the sockets of some namespaces.
#[derive(Debug)]
pub struct Polling {
    filter: Filter,
    dumps: Vec<(u32, Socket)>,
    sockets: BTreeSet<u64>,
    cgroups: BTreeSet<u64>,
    /// Records of the last poll by cookie.
    last: BTreeMap<u64, TcpRecord>,
    last_poll_ns: Option<u64>,
}

/// Entry of the kernel's list of sockets.
struct ListedSocket {
    record: TcpRecord,
    inode: u64,
    cgroup: u64,
}

impl Polling {
    /// Creates a source for these namespaces.
    pub fn new(filter: Filter, namespaces: &[Namespace]) -> Result<Polling, StartupError> {
        let current = Namespace::of_this_thread().and_then(|own| own.number()).unwrap_or(0);
        let open = |namespace: &Namespace| -> io::Result<(u32, Socket)> {
            let number = namespace.number()?;
            // Listing the current namespace needs no privilege.
            let socket = match number == current {
                true => Socket::new(SOCK_DIAG)?,
                false => namespace.run(|| Socket::new(SOCK_DIAG))??,
            };
            Ok((number as u32, socket))
        };
        let dumps = namespaces.iter().map(open).collect::<io::Result<_>>();
        let dumps =
            dumps.map_err(|error| StartupError::from_system("cannot list the kernel's sockets", &error))?;
        let (sockets, cgroups, last) = Default::default();
        let mut polling = Polling { filter, dumps, sockets, cgroups, last, last_poll_ns: None };
        polling.refresh();
        Ok(polling)
    }

    /// Updates the sets of sockets and cgroups that the filter selects; returns the processes that do not
    /// exist.
    pub fn refresh(&mut self) -> Vec<ProcessFilter> {
        let (sockets, missing) = self.filter.sockets();
        (self.sockets, self.cgroups) = (sockets, self.filter.cgroup_numbers());
        missing
    }

    /// Reports changes if a poll is due.
    pub fn poll(&mut self, mut take: impl FnMut(&TcpRecord, ChangeOrigin)) -> Result<(), StartupError> {
        let Some(mut present) = self.poll_sockets()? else { return Ok(()) };
        for last in self.last.values().filter(|last| !present.contains_key(&last.cookie)) {
            take(&closed(last), ChangeOrigin::Unknown);
        }
        for (cookie, record) in &mut present {
            let Some(last) = self.last.get(cookie) else {
                take(&TcpRecord { kind: RecordKind::Established, ..*record }, ChangeOrigin::Unknown);
                continue;
            };
            // The window is reset when sending resumes.
            let fell = record.snapshot.cwnd < last.snapshot.cwnd;
            record.cwnd_changed = if fell { record.last_sent } else { last.cwnd_changed };
            report_state_changes(last, record, &mut take);
            take(record, origin(last, record));
        }
        self.last = present;
        Ok(())
    }

    /// Returns the current records of matching connections by cookie if a poll is due.
    pub(super) fn poll_sockets(&mut self) -> Result<Option<BTreeMap<u64, TcpRecord>>, StartupError> {
        let now = monotonic_ns();
        if self.last_poll_ns.is_some_and(|last_poll_ns| now - last_poll_ns < POLL_INTERVAL.as_nanos() as u64)
        {
            return Ok(None);
        }
        self.last_poll_ns = Some(now);
        let mut present = BTreeMap::new();
        for (namespace, socket) in &mut self.dumps {
            for family in [libc::AF_INET, libc::AF_INET6] {
                let list_error =
                    |error| StartupError::from_system("cannot list the kernel's sockets", &error);
                for ListedSocket { record, inode, cgroup } in
                    list(socket, family as u8, now, *namespace).map_err(list_error)?
                {
                    if matches(&self.filter, &self.sockets, &self.cgroups, (&record, inode, cgroup)) {
                        present.insert(record.cookie, record);
                    }
                }
            }
        }
        Ok(Some(present))
    }
}

/// Returns whether a filter matches a socket, given the sockets of its processes and its cgroups.
fn matches(
    filter: &Filter,
    process_sockets: &BTreeSet<u64>,
    process_cgroups: &BTreeSet<u64>,
    (record, inode, cgroup): (&TcpRecord, u64, u64),
) -> bool {
    let Filter { processes, ports, addresses, namespaces, cgroups } = filter;
    let ends = [record.local, record.remote];
    let within = |end: SocketAddr| addresses.iter().any(|network| network.contains(end.ip()));
    (processes.is_empty() || process_sockets.contains(&inode))
        && (cgroups.is_empty() || process_cgroups.contains(&cgroup))
        && (namespaces.is_empty() || namespaces.contains(&record.namespace))
        && (ports.is_empty() || ends.iter().any(|end| ports.contains(&end.port())))
        && (addresses.is_empty() || ends.into_iter().any(within))
}

/// Returns the record of a connection that is no longer listed.
pub(super) fn closed(last: &TcpRecord) -> TcpRecord {
    TcpRecord { time_ns: monotonic_ns(), kind: RecordKind::Closed, ..*last }
}

fn origin(last: &TcpRecord, record: &TcpRecord) -> ChangeOrigin {
    ChangeOrigin::Polled { is_marked: record.marks != last.marks }
}

/// Reports changes of the congestion state between two polls of a socket.
pub(super) fn report_state_changes(
    last: &TcpRecord,
    record: &TcpRecord,
    take: &mut impl FnMut(&TcpRecord, ChangeOrigin),
) {
    let (before, after) = (last.snapshot.state, record.snapshot.state);
    let change = |from: CongestionState, to: CongestionState| TcpRecord {
        kind: RecordKind::Congestion { to },
        snapshot: FlowSnapshot { state: from, ..record.snapshot },
        ..*record
    };
    let origin = origin(last, record);
    let repaired = record.snapshot.retransmissions > last.snapshot.retransmissions;
    let reduced = record.snapshot.ssthresh != last.snapshot.ssthresh;
    if before != after {
        take(&change(before, after), origin);
    } else if after <= CongestionState::Disorder && repaired && reduced {
        take(&change(before, CongestionState::Recovery), origin);
        take(&change(CongestionState::Recovery, after), origin);
    } else if after <= CongestionState::Disorder && record.marks != last.marks && reduced {
        take(&change(before, CongestionState::Reducing), origin);
        take(&change(CongestionState::Reducing, after), origin);
    }
}

/// Lists all TCP sockets of a family that may send.
fn list(socket: &mut Socket, family: u8, now: u64, namespace: u32) -> io::Result<Vec<ListedSocket>> {
    let mut request = Vec::new();
    request.extend(72_u32.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, TCP, 1 << (INFO - 1) | 1 << (CONTROL - 1) | 1 << (MEMORY - 1), 0]);
    request.extend(STATES.to_ne_bytes());
    // Any address; a cookie of all ones matches any.
    request.extend([0; 40]);
    request.extend([0xff; 8]);
    socket.send_to(&request, &Kernel::new(0, 0), 0)?;
    let mut listed = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while rest.len() >= 16 {
            let mut reader = BpfReader::new(rest);
            let (Some(length), Some(kind)) = (reader.u32(), reader.u16()) else { break };
            let length = (length as usize).clamp(16, rest.len());
            match kind {
                DONE => return Ok(listed),
                ERROR => {
                    let code = BpfReader::new(&rest[16..]).u32().unwrap_or(0) as i32;
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => listed.extend(read(&rest[16..length], now, namespace)),
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

/// Parses `struct inet_diag_msg` and its attributes.
fn read(bytes: &[u8], now: u64, namespace: u32) -> Option<ListedSocket> {
    let mut reader = BpfReader::new(bytes);
    let [family, _, _, _] = reader.take::<4>()?;
    let (local_port, remote_port) = (u16::from_be_bytes(reader.take()?), u16::from_be_bytes(reader.take()?));
    let is_v4 = i32::from(family) == libc::AF_INET;
    let (local, remote) = (reader.diag_address(is_v4)?, reader.diag_address(is_v4)?);
    let _interface = reader.u32()?;
    let cookie = reader.u64()?;
    let [_, _, _, _, inode] = reader.words()?;
    let (mut info, mut cgroup, mut is_modeled, mut is_full) = (None, 0, false, false);
    let mut rest = bytes.get(MESSAGE..)?;
    while rest.len() >= 4 {
        let mut reader = BpfReader::new(rest);
        let (length, kind) = (usize::from(reader.u16()?).clamp(4, rest.len()), reader.u16()?);
        match kind {
            INFO => info = Some(&rest[4..length]),
            CONTROL => is_modeled = rest[4..length].starts_with(b"bbr"),
            MEMORY => is_full = is_send_buffer_full(&rest[4..length]).unwrap_or(false),
            CGROUP => cgroup = BpfReader::new(&rest[4..length]).u64().unwrap_or(0),
            _ => {}
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    let (local, remote) = (SocketAddr::new(local, local_port), SocketAddr::new(remote, remote_port));
    let base = TcpRecord {
        time_ns: now,
        cookie,
        namespace,
        local,
        remote,
        kind: RecordKind::Acknowledged,
        snapshot: FlowSnapshot {
            state: CongestionState::Open,
            segment: 0,
            cwnd: 0,
            ssthresh: None,
            in_flight: 0,
            outstanding: 0,
            unsent: 0,
            peer_window: 0,
            smoothed_round_trip: None,
            min_round_trip: None,
            latest_round_trip: None,
            pacing_rate: None,
            delivery_rate: None,
            acknowledged: 0,
            retransmissions: 0,
            send_buffer_full: is_full,
            model_based: is_modeled,
        },
        marks: 0,
        is_probing: false,
        may_undo: false,
        last_sent: 0,
        cwnd_changed: 0,
        timeout: 0,
    };
    Some(ListedSocket { record: with_info(base, info?)?, inode: inode.into(), cgroup })
}

/// Returns whether the kernel makes a writer wait (`sk_stream_is_writeable`): more than two thirds of the send buffer
/// are occupied. The bytes are the words of `SK_MEMINFO_*`.
fn is_send_buffer_full(memory: &[u8]) -> Option<bool> {
    let [_, _, _, limit, _, queued] = BpfReader::new(memory).words()?;
    Some(3 * u64::from(queued) > 2 * u64::from(limit))
}

/// Parses `struct tcp_info`, which is shorter on older kernels.
fn with_info(mut record: TcpRecord, info: &[u8]) -> Option<TcpRecord> {
    let word = |offset: usize| BpfReader::new(info.get(offset..)?).u32();
    let long = |offset: usize| BpfReader::new(info.get(offset..)?).u64();
    let now_ms = (record.time_ns / 1_000_000) as u32;
    let segment = word(16)?;
    let bytes_of = |segments: u32| u64::from(segments) * u64::from(segment);
    let [unacked, sacked, lost, retrans] = [word(24)?, word(28)?, word(32)?, word(36)?];
    let ssthresh = word(76)?;
    let rate = |bytes: u64| (bytes > 0 && bytes < u64::MAX).then(|| BitRate(bytes.saturating_mul(8)));
    let round_trip = |us: u32| (us > 0 && us < u32::MAX).then(|| Duration::from_micros(us.into()));
    let state = record::state(*info.get(1)?)?;
    record.snapshot = FlowSnapshot {
        state,
        segment,
        cwnd: bytes_of(word(80)?),
        ssthresh: (ssthresh < record::NO_THRESHOLD).then(|| bytes_of(ssthresh)),
        in_flight: bytes_of(unacked.saturating_sub(sacked.saturating_add(lost)).saturating_add(retrans)),
        outstanding: bytes_of(unacked),
        unsent: word(144).unwrap_or(0).into(),
        // Not available before Linux 5.4.
        peer_window: word(228).map_or(u64::MAX >> 1, u64::from),
        smoothed_round_trip: round_trip(word(68)?),
        min_round_trip: word(148).and_then(round_trip),
        latest_round_trip: None,
        pacing_rate: long(104).and_then(rate),
        delivery_rate: long(160).and_then(rate),
        acknowledged: long(120).unwrap_or(0),
        retransmissions: word(100)?.into(),
        ..record.snapshot
    };
    record.marks = word(196).unwrap_or(0);
    // In milliseconds instead of the jiffies of the BPF programs: only differences matter.
    record.last_sent = now_ms.wrapping_sub(word(44)?);
    record.timeout = word(8)? / 1_000;
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_own_connection_is_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let _other = listener.accept().unwrap();
        stream.write_all(&[0; 1_000]).unwrap();
        let own = Namespace::of_this_thread().unwrap();
        let filter = Filter { ports: vec![address.port()], ..Filter::default() };
        let mut polling = Polling::new(filter, &[own]).unwrap();
        let mut records = Vec::new();
        polling.poll(|record, _| records.push(*record)).unwrap();
        let sender = records.iter().find(|record| record.remote == address).unwrap();
        assert_eq!((sender.kind, sender.local), (RecordKind::Established, stream.local_addr().unwrap()));
        let FlowSnapshot { cwnd, segment, peer_window, ssthresh, .. } = sender.snapshot;
        assert!(cwnd >= 2 * u64::from(segment) && segment > 500, "{sender:?}");
        assert!((10_000..1 << 30).contains(&peer_window) && ssthresh.is_none(), "{sender:?}");
        assert!(sender.snapshot.smoothed_round_trip.is_some_and(|trip| trip < Duration::from_secs(10)));
        assert_eq!(records.len(), 2);
    }
}
