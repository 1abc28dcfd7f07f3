//! Sessions of the members with the route server, and their changes during the run.

use super::RouteServerSpec;
use super::record::MemberRecord;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::netns::Namespace;
use netstage_routing::bgp::inject::SendOrder;
use netstage_routing::bgp::nlri::{BgpFamily, Nlri, NlriPrefix};
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::path::{AsPath, PathAttributes};
use netstage_routing::bgp::session::BgpSettings;
use netstage_routing::bgp::speaker::{self, Endpoint, SpeakerCommand, SpeakerReport};
use netstage_routing::bgp::table::BgpTable;
use netstage_routing::session_thread;
use netstage_scenario::plan::{MemberAction, RouteServer};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Interval in which the end of the run is checked.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// Time between attempts to connect to the route server.
const RETRY: Duration = Duration::from_secs(1);
/// TCP port of BGP.
const BGP_PORT: u16 = 179;
/// Proposed hold time. An overloaded route server must not lose its sessions.
const HOLD_TIME: Duration = Duration::from_secs(180);

/// Session of a member, which is closed when this is dropped.
pub struct Member {
    /// Access to the session.
    pub handle: MemberHandle,
    /// Record of the run.
    pub record: Arc<Mutex<MemberRecord>>,
}

/// Access to a member's session.
#[derive(Clone)]
pub struct MemberHandle {
    commands: UnboundedSender<SpeakerCommand>,
    /// Prefixes announced at the start.
    table: Arc<BgpTable>,
    /// Time of the run until which the member floods, in nanoseconds.
    flood_end: Arc<AtomicU64>,
}

/// Returns a table of consecutive prefixes that a member announces with itself as the origin.
fn table(spec: &RouteServerSpec, member: usize, prefixes: impl Iterator<Item = u32>) -> Arc<BgpTable> {
    let mut table = BgpTable::new();
    let path = PathAttributes::new(spec.members[member].1.into(), AsPath::default());
    let group = table.group(BgpFamily::Ipv4Unicast, path).expect("the next hop is an IPv4 address");
    for number in prefixes {
        let prefix = NlriPrefix::new(RouteServer::prefix(number).into(), RouteServer::PREFIX_LENGTH);
        table.push(group, &Nlri::unicast(prefix.expect("the length is valid")));
    }
    Arc::new(table)
}

/// Returns the numbers of a member's own prefixes from `first` on.
fn own(server: &RouteServer, member: usize, first: u32, count: u32) -> impl Iterator<Item = u32> {
    let first = member as u32 * server.prefixes_per_member() + first;
    first..first + count
}

/// Returns the numbers of prefixes that the members after this one announce at the start.
fn of_others(server: &RouteServer, member: usize, count: u32) -> impl Iterator<Item = u32> {
    let others = (1..server.members.len()).map(move |offset| (member + offset) % server.members.len());
    others.flat_map(|other| own(server, other, 0, server.routes)).take(count as usize)
}

impl Member {
    /// Starts the session of a member in its namespace at the epoch.
    pub fn start(
        spec: &RouteServerSpec,
        member: usize,
        namespace: &Namespace,
        epoch: Epoch,
    ) -> io::Result<Member> {
        let table = table(spec, member, own(&spec.server, member, 0, spec.server.routes));
        let (commands, received) = unbounded_channel();
        let _ = commands.send(SpeakerCommand::Announce(Arc::clone(&table), SendOrder::Packed));
        let record = Arc::new(Mutex::new(MemberRecord::new(spec, member)));
        let handle = MemberHandle { commands, table, flood_end: Arc::new(AtomicU64::new(0)) };
        let mut flood = Flood { handle: handle.clone(), pending: 0 };
        let recording = Arc::clone(&record);
        let on_report = move |_: Instant, report: SpeakerReport| {
            let now = epoch.now();
            lock(&recording).handle(now, &report);
            if matches!(report, SpeakerReport::Sent(_)) {
                flood.continue_at(now);
            }
        };
        let (settings, endpoint, failing) =
            (settings(spec, member), endpoint(spec, member), Arc::clone(&record));
        let session = async move {
            let wait = epoch.0.saturating_sub(monotonic_ns());
            tokio::time::sleep(std::time::Duration::from_nanos(wait)).await;
            let start = std::time::Instant::now();
            if let Err(error) = speaker::run(settings, endpoint, start, received, on_report).await {
                lock(&failing).fail(&error);
            }
        };
        let name = format!("member{member}");
        session_thread::run(&name, namespace, vec![session], |session| session)?;
        Ok(Member { handle, record })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The thread is not joined: it waits for packets of the server, and the links may carry none any more.
        let _ = self.handle.commands.send(SpeakerCommand::Stop);
    }
}

/// Withdraws and announces a table repeatedly.
struct Flood {
    handle: MemberHandle,
    /// Commands whose messages are not sent yet.
    pending: u32,
}

impl Flood {
    /// Sends the next commands if all messages of the previous ones are sent.
    fn continue_at(&mut self, now: Instant) {
        self.pending = self.pending.saturating_sub(1);
        if self.pending == 0 && now.0 < self.handle.flood_end.load(Ordering::Relaxed) {
            self.pending = self.handle.flap();
        }
    }
}

impl MemberHandle {
    /// Withdraws and announces the table. Returns the number of commands.
    fn flap(&self) -> u32 {
        let all = [SpeakerCommand::Withdraw, SpeakerCommand::Announce];
        for command in all {
            // Fails only if the session has ended, which is recorded.
            let _ = self.commands.send(command(Arc::clone(&self.table), SendOrder::Packed));
        }
        all.len() as u32
    }
}

/// Makes the changes at their times, until all are made or `stop` is set.
pub fn make_changes(spec: &RouteServerSpec, handles: &[MemberHandle], epoch: Epoch, stop: &AtomicBool) {
    for change in &spec.server.changes {
        loop {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let wait = std::time::Duration::from_nanos(change.at.0.saturating_sub(epoch.now().0));
            if wait.is_zero() {
                break;
            }
            std::thread::sleep(wait.min(POLL_INTERVAL));
        }
        let (server, member) = (&spec.server, change.member);
        let handle = &handles[member];
        let announce = |table| SpeakerCommand::Announce(table, SendOrder::Packed);
        let command = match change.action {
            MemberAction::Announce(count) => {
                let first = server.announced(member, Instant(change.at.0.saturating_sub(1)));
                announce(table(spec, member, own(server, member, first, count)))
            }
            MemberAction::Leak(count) => announce(table(spec, member, of_others(server, member, count))),
            MemberAction::Flood(_) => {
                handle.flood_end.store(change.end().0, Ordering::Relaxed);
                handle.flap();
                continue;
            }
            MemberAction::Shutdown => SpeakerCommand::Stop,
        };
        // Fails only if the session has ended, which is recorded.
        let _ = handle.commands.send(command);
    }
}

/// Locks a record, also after a panic of another thread.
pub fn lock<T>(record: &Mutex<T>) -> MutexGuard<'_, T> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(spec: &RouteServerSpec, member: usize) -> BgpSettings {
    BgpSettings {
        identity: OpenParameters {
            local_as: spec.server.members[member].system,
            peer_as: Some(spec.server.system),
            identifier: spec.members[member].1,
            hold_time: HOLD_TIME,
            families: vec![BgpFamily::Ipv4Unicast],
            four_octet_as: true,
        },
        connects: true,
        connect_retry: RETRY,
        restart: Some(RETRY),
    }
}

fn endpoint(spec: &RouteServerSpec, member: usize) -> Endpoint {
    Endpoint {
        local: spec.members[member].1.into(),
        peer: spec.address.into(),
        peer_port: BGP_PORT,
        listen_port: Some(BGP_PORT),
        md5_key: None,
        security_hops: None,
    }
}
