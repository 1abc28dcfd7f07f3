//! RSVP-TE: a speaker in a thread of its own, and the labels and routes that result from its events.

use super::state::{CounterValue, LspState, TunnelState};
use crate::counter::Severity;
use netstage_core::rsvp::Lsp;
use netstage_host::log::{Level, Log};
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use netstage_routing::rsvp::{
    self, LspStatus, RsvpAuthenticationCounters, RsvpBypass, RsvpCommand, RsvpConfig, RsvpCounters,
    RsvpEvent, RsvpNeighbor, RsvpNextHop, RsvpPlace, RsvpReport, RsvpSockets,
};
use netstage_routing::source::path::{
    Destination, InterfaceNeighbor, LabelAction, RoutePath, SourceChange, TablePrefix,
};
use netstage_routing::source::{RankedRoutes, SourceKey};
use netstage_scenario::router::{RsvpSettings, RsvpTunnelSettings};
use netstage_wire::mpls::LabelValue;
use nix::sys::eventfd::EventFd;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sender of commands to the speaker.
pub(super) type RsvpCommands = UnboundedSender<RsvpCommand>;

/// Speaker of the router, and what it has established.
#[derive(Debug)]
pub(super) struct Rsvp {
    commands: RsvpCommands,
    /// Until the end.
    notices: Option<Receiver<Notice>>,
    thread: Option<JoinHandle<()>>,
    /// Numbers of the interfaces, in the order of the speaker's.
    interfaces: Vec<u32>,
    tunnels: BTreeMap<u16, Tunnel>,
    ranked: RankedRoutes,
    /// Next hops that the speaker knows.
    followed: BTreeMap<(Ipv4Addr, u8), RsvpNeighbor>,
}

/// LSP that begins at this router.
#[derive(Debug)]
struct Tunnel {
    settings: RsvpTunnelSettings,
    in_use: Option<(Lsp, RsvpNextHop)>,
    /// Last error, until the LSP is established.
    failure: Option<String>,
}

/// Notice of the speaker's thread.
#[derive(Debug)]
enum Notice {
    /// Reports. The thread waits until they are applied.
    Reports(Vec<RsvpReport>, Unapplied),
    /// The thread has ended because of an error.
    Ended(io::Error),
}

/// Held until reports are applied. The speaker then advertises the labels; before, their packets would be dropped.
#[derive(Debug)]
pub(super) struct Unapplied(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Rsvp {
    /// Starts a speaker on interfaces, given with their numbers. The bell rings for each report.
    pub fn begin(
        settings: &RsvpSettings,
        places: Vec<(u32, RsvpPlace)>,
        namespace: Namespace,
        bell: Arc<EventFd>,
    ) -> Result<Rsvp, StartupError> {
        let (commands, received) = unbounded_channel();
        let (sender, notices) = channel();
        let (interfaces, places) = places.into_iter().unzip();
        let sockets = RsvpSockets { namespace, interfaces: places };
        let config = configuration(settings);
        let speak = move || {
            let ring = |notice| {
                // The receiver may have ended.
                let _ = sender.send(notice);
                let _ = bell.write(1);
            };
            let apply = |reports| {
                let (held, applied) = channel();
                ring(Notice::Reports(reports, Unapplied(held)));
                // Fails as soon as the other end is dropped.
                let _ = applied.recv();
            };
            if let Err(error) = speak(config, sockets, received, apply) {
                ring(Notice::Ended(error));
            }
        };
        let thread = std::thread::Builder::new().name("router-rsvp".into()).spawn(speak);
        let thread = thread.map_err(|error| StartupError::from_system("cannot start RSVP-TE", &error))?;
        let mut rsvp = Rsvp {
            commands,
            notices: Some(notices),
            thread: Some(thread),
            interfaces,
            tunnels: BTreeMap::new(),
            ranked: RankedRoutes::default(),
            followed: BTreeMap::new(),
        };
        rsvp.set_tunnels(&settings.tunnels);
        Ok(rsvp)
    }

    /// Returns a sender of commands.
    pub fn commands(&self) -> RsvpCommands {
        self.commands.clone()
    }

    /// Returns the present labels, and the routes into LSPs.
    pub fn ranked(&self) -> &RankedRoutes {
        &self.ranked
    }

    /// Sets the tunnels that begin here. A tunnel is known by its name. Returns the changed routes.
    pub fn set_tunnels(&mut self, tunnels: &[RsvpTunnelSettings]) -> Vec<SourceKey> {
        let mut changes = Vec::new();
        let name = |(number, tunnel): (&u16, &Tunnel)| (tunnel.settings.name.clone(), *number);
        let mut gone: BTreeMap<String, u16> = self.tunnels.iter().map(name).collect();
        let known: Vec<Option<u16>> = tunnels.iter().map(|new| gone.remove(&new.name)).collect();
        for number in gone.into_values() {
            self.command(RsvpCommand::RemoveTunnel(number));
            changes.extend(self.route(number, None));
            self.remove(number);
        }
        let in_use: BTreeSet<u16> = self.tunnels.keys().copied().collect();
        let mut free = (1..=u16::MAX).filter(|number| !in_use.contains(number));
        for (settings, known) in tunnels.iter().zip(known) {
            let Some(number) = known.or_else(|| free.next()) else { continue };
            if self.tunnels.get(&number).is_some_and(|tunnel| tunnel.settings == *settings) {
                continue;
            }
            changes.extend(self.route(number, None));
            let in_use = self.remove(number).and_then(|tunnel| tunnel.in_use);
            // To another endpoint, the speaker does not keep the previous LSP.
            let in_use = in_use.filter(|(lsp, _)| lsp.session.endpoint == settings.request.endpoint);
            self.tunnels.insert(number, Tunnel { settings: settings.clone(), in_use, failure: None });
            self.announce_bypass(number);
            changes.extend(self.route(number, in_use.map(|(_, to)| to)));
            self.command(RsvpCommand::SetTunnel(number, settings.request.clone()));
        }
        changes
    }

    /// Passes the next hop of a prefix to the speaker, for loose hops of explicit routes.
    pub fn follow(&mut self, change: &SourceChange) {
        let SourceChange::Route((0, (IpAddr::V4(network), length)), to) = change else { return };
        let next_hop = to.as_ref().and_then(|to| self.neighbor(to));
        let before = match next_hop {
            Some(next_hop) => self.followed.insert((*network, *length), next_hop),
            None => self.followed.remove(&(*network, *length)),
        };
        if before != next_hop {
            self.command(RsvpCommand::SetRoute(*network, *length, next_hop));
        }
    }

    /// Reports the failure of a neighbor to the speaker.
    pub fn fail_neighbor(&self, (interface, address): InterfaceNeighbor) {
        let place = self.interfaces.iter().position(|number| *number == interface);
        if let (Some(place), IpAddr::V4(address)) = (place, address) {
            self.command(RsvpCommand::FailNeighbor(RsvpNeighbor { interface: place as u32 + 1, address }));
        }
    }

    /// Returns the first next hop of a destination that speaks RSVP-TE.
    fn neighbor(&self, to: &Destination) -> Option<RsvpNeighbor> {
        let Destination::Paths(paths) = to else { return None };
        paths.iter().find_map(|path| {
            let place = self.interfaces.iter().position(|number| *number == path.interface)?;
            let Some(IpAddr::V4(address)) = path.via else { return None };
            Some(RsvpNeighbor { interface: place as u32 + 1, address })
        })
    }

    /// Handles the reports of the speaker. Returns the changed routes and labels, to be applied now.
    pub fn poll(&mut self, log: &Log) -> (Vec<SourceKey>, Vec<Unapplied>) {
        let (mut changes, mut unapplied) = (Vec::new(), Vec::new());
        while let Some(Ok(notice)) = self.notices.as_ref().map(Receiver::try_recv) {
            match notice {
                Notice::Reports(reports, held) => {
                    reports.into_iter().for_each(|report| changes.extend(self.handle(report, log)));
                    unapplied.push(held);
                }
                Notice::Ended(error) => {
                    let line =
                        format!("RSVP-TE has ended, its labels are removed: {error}; restart the router");
                    log(Level::Alarm, &line);
                    changes.extend(self.ranked.keys());
                    self.ranked = RankedRoutes::default();
                }
            }
        }
        (changes, unapplied)
    }

    fn handle(&mut self, report: RsvpReport, log: &Log) -> Vec<SourceKey> {
        let event = match report {
            RsvpReport::Event(event) => event,
            RsvpReport::Fault(fault) => {
                log(Level::Alarm, &format!("RSVP-TE on {fault}"));
                return Vec::new();
            }
        };
        match event {
            RsvpEvent::Up { tunnel: number, lsp, to } => {
                let Some(tunnel) = self.tunnels.get_mut(&number) else { return Vec::new() };
                tunnel.in_use = Some((lsp, to));
                tunnel.failure = None;
                log(
                    Level::Note,
                    &format!("tunnel {} is up, via {}", tunnel.settings.name, to.neighbor.address),
                );
                self.announce_bypass(number);
                return self.route(number, Some(to));
            }
            RsvpEvent::Repaired { tunnel, node } => {
                let Some(tunnel) = self.tunnels.get(&tunnel) else { return Vec::new() };
                let name = &tunnel.settings.name;
                log(Level::Alarm, &format!("tunnel {name}: {node} has repaired it by a bypass LSP"));
            }
            RsvpEvent::Down { tunnel: number, lsp } => {
                let Some(tunnel) = self.tunnels.get_mut(&number) else { return Vec::new() };
                // The previous LSP ends after its replacement is in use.
                if tunnel.in_use.is_some_and(|(in_use, _)| in_use == lsp) {
                    tunnel.in_use = None;
                    log(Level::Alarm, &format!("tunnel {} is down", tunnel.settings.name));
                    self.announce_bypass(number);
                    return self.route(number, None);
                }
            }
            RsvpEvent::Failed { tunnel, error } => {
                let meaning = error.meaning();
                let failure = format!(
                    "{} reports: {meaning} (error {}, value {})",
                    error.node, error.code, error.value
                );
                self.fail(tunnel, failure, log);
            }
            RsvpEvent::Forward { label, to } => {
                let forward = LabelAction::Forward(Destination::Paths(vec![self.path(to)]));
                return self.label(label, Some(forward));
            }
            RsvpEvent::Pop { label } => return self.label(label, Some(LabelAction::Pop { table: 0 })),
            RsvpEvent::Discard { label } => return self.label(label, None),
            RsvpEvent::Unreserved { lsp, upstream, downstream } => {
                self.report_unreserved(lsp, upstream, downstream, log);
            }
            RsvpEvent::NeighborUp { neighbor } => {
                log(Level::Note, &format!("RSVP-TE neighbor {} is up", neighbor.address));
            }
            RsvpEvent::NeighborDown { neighbor } => {
                log(Level::Alarm, &format!("RSVP-TE neighbor {} has failed or restarted", neighbor.address));
            }
            RsvpEvent::Limited { neighbor } => {
                let line = format!("{} exceeds the number of LSPs or of RSVP-TE neighbors", neighbor.address);
                log(Level::Alarm, &line);
            }
        }
        Vec::new()
    }

    /// Reports an LSP that the next router has not reserved: at its ingress, as the failure of its tunnel.
    fn report_unreserved(
        &mut self,
        lsp: Lsp,
        upstream: Option<RsvpNeighbor>,
        downstream: RsvpNeighbor,
        log: &Log,
    ) {
        let (next, number, to) = (downstream.address, lsp.session.tunnel, lsp.session.endpoint);
        let own = u16::try_from(number).ok().filter(|_| upstream.is_none());
        let Some(own) = own else {
            let id = lsp.sender.lsp;
            return log(Level::Note, &format!("{next} has not reserved LSP {id} of tunnel {number} to {to}"));
        };
        // An error of a router says more.
        if self.tunnels.get(&own).is_some_and(|tunnel| tunnel.failure.is_none()) {
            let reason = "a router on the path may lack RSVP-TE or a route";
            self.fail(own, format!("{next} has not reserved it; {reason} to {to}"), log);
        }
    }

    /// Records why a tunnel cannot be set up, and reports a new reason.
    fn fail(&mut self, number: u16, failure: String, log: &Log) {
        let Some(tunnel) = self.tunnels.get_mut(&number) else { return };
        if tunnel.failure.as_ref() != Some(&failure) {
            log(Level::Alarm, &format!("tunnel {} cannot be set up: {failure}", tunnel.settings.name));
            tunnel.failure = Some(failure);
        }
    }

    /// Removes a tunnel, which protects its neighbor no more.
    fn remove(&mut self, number: u16) -> Option<Tunnel> {
        let removed = self.tunnels.remove(&number)?;
        if let Some(neighbor) = removed.settings.protects {
            self.command(RsvpCommand::SetBypass(neighbor, None));
        }
        Some(removed)
    }

    /// Passes a bypass LSP, or its end, to the speaker.
    fn announce_bypass(&self, number: u16) {
        let Some(tunnel) = self.tunnels.get(&number) else { return };
        if let Some(neighbor) = tunnel.settings.protects {
            let bypass = tunnel
                .in_use
                .map(|(lsp, to)| RsvpBypass { merge_point: lsp.session.endpoint, next_hop: to.neighbor });
            self.command(RsvpCommand::SetBypass(neighbor, bypass));
        }
    }

    /// Returns the established tunnels that protect a neighbor, with its address.
    pub fn backups(&self) -> impl Iterator<Item = (Ipv4Addr, RoutePath)> {
        self.tunnels.values().filter_map(|tunnel| {
            let (_, to) = tunnel.in_use?;
            Some((tunnel.settings.protects?, self.path(to)))
        })
    }

    /// Sets or removes a label. Returns it if it changed.
    fn label(&mut self, label: LabelValue, action: Option<LabelAction>) -> Vec<SourceKey> {
        self.ranked.label(label, action).iter().map(SourceKey::from).collect()
    }

    /// Sets the routes of a tunnel. Returns those that changed.
    fn route(&mut self, number: u16, to: Option<RsvpNextHop>) -> Vec<SourceKey> {
        let to = to.map(|to| Destination::Paths(vec![self.path(to)]));
        let Some(tunnel) = self.tunnels.get(&number) else { return Vec::new() };
        let prefixes = tunnel.settings.prefixes.iter();
        let prefixes: Vec<TablePrefix> = prefixes.map(|one| (0, (one.address(), one.length()))).collect();
        let changes = prefixes.into_iter().filter_map(|prefix| self.ranked.route(prefix, 0, to.clone()));
        changes.map(|change| SourceKey::from(&change)).collect()
    }

    fn path(&self, to: RsvpNextHop) -> RoutePath {
        let labels = if to.label == LabelValue::IMPLICIT_NULL { Vec::new() } else { vec![to.label] };
        let interface = self.interfaces[to.neighbor.interface as usize - 1];
        RoutePath { interface, via: Some(to.neighbor.address.into()), labels }
    }

    /// Returns the state of the tunnels.
    pub fn tunnels(&self) -> Vec<TunnelState> {
        let state = |(number, tunnel): (&u16, &Tunnel)| TunnelState {
            name: tunnel.settings.name.clone(),
            number: *number,
            to: tunnel.settings.request.endpoint,
            lsp: tunnel.in_use.map(|(lsp, _)| lsp.sender.lsp),
            via: tunnel.in_use.map(|(_, to)| to.neighbor.address),
            label: tunnel.in_use.map(|(_, to)| to.label.number()),
            failure: tunnel.failure.clone(),
        };
        self.tunnels.iter().map(state).collect()
    }

    fn command(&self, command: RsvpCommand) {
        // A speaker that has ended was reported.
        let _ = self.commands.send(command);
    }
}

impl Drop for Rsvp {
    fn drop(&mut self) {
        self.command(RsvpCommand::Stop);
        // The thread does not wait for reports to be applied any more.
        drop(self.notices.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn speak(
    config: RsvpConfig,
    sockets: RsvpSockets,
    commands: UnboundedReceiver<RsvpCommand>,
    apply: impl Fn(Vec<RsvpReport>),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(rsvp::run(config, sockets, Instant::now(), commands, |_, reports| apply(reports)))
}

fn configuration(settings: &RsvpSettings) -> RsvpConfig {
    RsvpConfig {
        labels: settings.first_label..=LabelValue::MAX,
        egress: settings.egress,
        refresh: settings.refresh,
        hello: Some(settings.hello),
        ..RsvpConfig::new(settings.router_id, rsvp::new_instance())
    }
}

/// Returns the state of an LSP.
pub(super) fn lsp_state(status: &LspStatus) -> LspState {
    let LspStatus { lsp, upstream, downstream, is_reserved, is_repaired, bandwidth, incoming, outgoing } =
        *status;
    LspState {
        to: lsp.session.endpoint,
        tunnel: lsp.session.tunnel,
        from: lsp.sender.address,
        lsp: lsp.sender.lsp,
        upstream: upstream.map(|neighbor| neighbor.address),
        downstream: downstream.map(|neighbor| neighbor.address),
        is_reserved,
        is_repaired,
        bandwidth_bps: bandwidth.0,
        incoming: incoming.map(LabelValue::number),
        outgoing: outgoing.map(LabelValue::number),
    }
}

/// Returns the counters of a speaker.
pub(super) fn counters(
    counters: &RsvpCounters,
    authentication: &RsvpAuthenticationCounters,
) -> Vec<CounterValue> {
    use Severity::{Error, Info, Warning};
    let (c, a) = (counters, authentication);
    let all = [
        ("received", Info, c.received, "RSVP message received."),
        ("sent", Info, c.sent, "RSVP message sent, including retransmissions."),
        (
            "retransmitted",
            Warning,
            c.retransmitted,
            "RSVP message sent again because no acknowledgment arrived.",
        ),
        ("malformed", Error, c.malformed, "RSVP message that cannot be decoded."),
        ("wrong_interface", Error, c.wrong_interface, "RSVP message on an interface without RSVP-TE."),
        ("wrong_hop", Error, c.wrong_hop, "RSVP message from a router that is not a hop of the LSP."),
        (
            "wrong_backup",
            Error,
            c.wrong_backup,
            "Path from a router on no link, for no LSP that the previous hop may have repaired.",
        ),
        ("stale", Info, c.stale, "RSVP message older than the last one."),
        ("unknown_lsp", Warning, c.unknown_lsp, "RSVP message for an LSP that does not exist."),
        ("loops", Error, c.loops, "Path refused because of a loop."),
        ("no_route", Error, c.no_route, "Path refused because its route leads nowhere."),
        ("ttl_exceeded", Error, c.ttl_exceeded, "Path refused because its time to live expired."),
        ("limited", Error, c.limited, "Path refused by the limits per neighbor and interface."),
        ("no_bandwidth", Warning, c.no_bandwidth, "Path or reservation refused because of bandwidth."),
        ("no_label", Error, c.no_label, "Reservation refused because no label was free."),
        ("path_timeouts", Warning, c.path_timeouts, "Path removed because of missing refreshes."),
        (
            "reservation_timeouts",
            Warning,
            c.reservation_timeouts,
            "Reservation removed because of missing refreshes.",
        ),
        ("unreserved", Warning, c.unreserved, "LSP that the next router did not reserve in time."),
        ("too_long", Error, c.too_long, "RSVP message not sent because of its length."),
        ("unauthenticated", Error, a.unauthenticated, "RSVP message without authentication."),
        ("unknown_key", Error, a.unknown_key, "RSVP message with an unknown key."),
        ("wrong_digest", Error, a.wrong_digest, "RSVP message with a wrong digest."),
        (
            "replayed",
            Error,
            a.replayed,
            "RSVP message with a sequence number that is not above the last one.",
        ),
        ("reflected", Error, a.reflected, "RSVP message of this router that was sent back."),
        (
            "unchallenged",
            Info,
            a.unchallenged,
            "RSVP message from a neighbor that had not answered a challenge yet.",
        ),
        ("key_limited", Error, a.limited, "RSVP message from further neighbors than an interface may have."),
        ("challenges", Info, a.challenges, "Challenge sent to a neighbor (RFC 2747)."),
        ("responses", Info, a.responses, "Challenge of a neighbor answered."),
    ];
    let value = |(name, severity, packets, meaning): (&str, Severity, u64, &str)| {
        CounterValue::new("rsvp", name, severity.name(), meaning, packets)
    };
    all.into_iter().map(value).collect()
}
