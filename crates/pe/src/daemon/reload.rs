//! Configuration change of a running router: checked completely, then applied at once.

use super::forward::{PeCommand, Replacement};
use super::host::Host;
use super::peer_routes::RouteFollower;
use super::placement::VpnPlacement;
use super::session::RouterEpoch;
use super::snapshot::{PeSnapshot, PeerRouteState, PeerState, format_mac};
use super::threads::{AllCommandSenders, CoreConfigurations, CoreExchange};
use super::{Level, Log, PeDaemon, PeError, open};
use netstage_core::fair::{self, VpnControl};
use netstage_host::clock::{monotonic_ns, realtime_offset_ns};
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{self, PeConfig, PeerTunnel, ReferenceSource};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Configuration file, and counts of applied and rejected configurations.
pub(super) struct PeConfigurationFile {
    pub path: PathBuf,
    /// Text of the present configuration, for the trace; empty without one.
    traced_text: Mutex<String>,
    beginning: RouterEpoch,
    log: Log,
    counts: Mutex<ReloadCounts>,
    placement: Mutex<VpnPlacement>,
    /// Last reason why an interface that was recreated could not be opened.
    reopen_failure: Mutex<Option<String>>,
}

/// Change from one configuration to another.
struct ConfigurationChange<'a> {
    old: &'a PeConfig,
    new: &'a PeConfig,
    /// Interfaces to open again.
    reopened: &'a BTreeSet<String>,
    /// Text of the new configuration.
    text: &'a str,
}

#[derive(Clone, Debug, Default)]
struct ReloadCounts {
    taken: u64,
    refused: u64,
    refusal: String,
}

impl PeConfigurationFile {
    /// `traced_text` is the text of the first configuration, if decisions are traced.
    pub fn new(
        path: PathBuf,
        traced_text: Option<&str>,
        beginning: RouterEpoch,
        placement: VpnPlacement,
        log: Log,
    ) -> PeConfigurationFile {
        let counts = Mutex::new(ReloadCounts { taken: 1, ..ReloadCounts::default() });
        let traced_text = Mutex::new(traced_text.unwrap_or_default().to_owned());
        PeConfigurationFile {
            path,
            traced_text,
            beginning,
            log,
            counts,
            placement: Mutex::new(placement),
            reopen_failure: Mutex::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, ReloadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reload(
        &self,
        follower: &RouteFollower,
        orders: &AllCommandSenders,
    ) -> Result<Vec<String>, PeError> {
        let mut changes = Vec::new();
        let taken: Result<(), PeError> = follower.change(|host, old| {
            let text = pe::read(&self.path).map_err(PeError::Configuration)?;
            let new =
                Arc::new(pe::parse(&self.path.display().to_string(), &text).map_err(PeError::Configuration)?);
            let change = ConfigurationChange { old, new: &new, reopened: &BTreeSet::new(), text: &text };
            self.take(host, &change, orders)?;
            let mut traced = self.traced_text();
            if !traced.is_empty() {
                *traced = text;
            }
            changes = differences(old, &new);
            Ok(new)
        });
        let mut counts = self.counts();
        match taken {
            Ok(()) => {
                counts.taken += 1;
                counts.refusal.clear();
                let what = if changes.is_empty() { "no changes".into() } else { changes.join("; ") };
                (self.log)(Level::Note, &format!("configuration applied: {what}"));
                Ok(changes)
            }
            Err(error) => {
                counts.refused += 1;
                counts.refusal = error.to_string();
                let what = format!(
                    "configuration rejected, the previous one stays active:\n{}",
                    counts.refusal.trim_end()
                );
                (self.log)(Level::Alarm, &what);
                Err(error)
            }
        }
    }

    fn traced_text(&self) -> MutexGuard<'_, String> {
        self.traced_text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes interfaces up again that were removed and recreated. Everything else keeps its state. Returns whether it
    /// succeeded; a reason why not is logged once.
    pub fn reopen(
        &self,
        host: &mut Host,
        router: &PeConfig,
        interfaces: &BTreeSet<String>,
        orders: &AllCommandSenders,
    ) -> bool {
        let text = self.traced_text().clone();
        let names = interfaces.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let change = ConfigurationChange { old: router, new: router, reopened: interfaces, text: &text };
        let failure = match self.take(host, &change, orders) {
            Ok(()) => None,
            Err(error) => Some(format!("{names} was recreated, but the router cannot use it:\n{error}")),
        };
        let mut known = self.reopen_failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &failure {
            None => (self.log)(Level::Note, &format!("{names} was recreated and is in use again")),
            Some(why) if *known != failure => (self.log)(Level::Alarm, why.trim_end()),
            Some(_) => {}
        }
        *known = failure;
        known.is_none()
    }

    /// Checks a configuration against the host and applies it to the engines.
    fn take(
        &self,
        host: &mut Host,
        change: &ConfigurationChange<'_>,
        orders: &AllCommandSenders,
    ) -> Result<(), PeError> {
        let ConfigurationChange { old, new, .. } = *change;
        for (what, is_same) in [
            ("control", old.control == new.control),
            ("metrics", old.metrics == new.metrics),
            ("cores", old.cores == new.cores),
            ("encryption_port", encryption_port(old) == encryption_port(new)),
        ] {
            if !is_same {
                let message = format!("[pe] `{what}` cannot be changed while the router runs");
                return Err(StartupError::new(message, "keep it, or restart the router").into());
            }
        }
        let before = sides(old);
        let after = sides(new);
        for (name, side) in &after {
            if before.get(name).is_some_and(|known| known != side) {
                let message =
                    format!("{name} cannot change between core and customer side while the router runs");
                return Err(StartupError::new(message, "restart the router").into());
            }
        }
        let mut placement = self.placement.lock().unwrap_or_else(PoisonError::into_inner);
        let shares =
            CoreConfigurations::new(new, VpnPlacement::new(new, &placement)?, host, &self.beginning)?;
        let (done, finished) = channel();
        let replacements = self.replacements(host, change, &placement, &shares, &done);
        drop(done);
        // Gives back interfaces the router no longer uses, or no longer needs after a rejection.
        let left = if replacements.is_ok() { (&before, &after) } else { (&after, &before) };
        let left: Vec<&str> = left.0.keys().filter(|name| !left.1.contains_key(*name)).copied().collect();
        let replaced = replacements.map(|replacements| {
            orders.send_each(replacements.into_iter().map(|one| PeCommand::Replace(Box::new(one))));
            finished.iter().count()
        });
        left.into_iter().for_each(|name| host.restore(name));
        if replaced? < new.cores {
            return Err(StartupError::new("a forwarding thread has ended", "restart the router").into());
        }
        *placement = shares.into_placement();
        Ok(())
    }

    /// Builds the update of each core. New ports are opened.
    fn replacements(
        &self,
        host: &mut Host,
        change: &ConfigurationChange<'_>,
        placement: &VpnPlacement,
        shares: &CoreConfigurations,
        done: &Sender<()>,
    ) -> Result<Vec<Replacement>, PeError> {
        let ConfigurationChange { old, new, reopened, text } = *change;
        let known = old.customer_interfaces();
        for name in new.customer_interfaces() {
            if reopened.contains(name) {
                host.forget(name);
            } else if known.contains(name) {
                continue;
            }
            host.take_over(name)?.iter().for_each(|warning| (self.log)(Level::Note, warning));
        }
        let mut replacements = Vec::with_capacity(new.cores);
        for (core, exchange) in CoreExchange::all(new).enumerate() {
            let has = ports(old, placement, core);
            let (mut opened, mut filters) = (Vec::new(), Vec::new());
            for (name, filter) in shares.interfaces(core, new)? {
                if !has.contains(name) || reopened.contains(name) {
                    opened.push((name.to_owned(), open(host, name, new, filter.as_ref(), &self.log)?));
                }
                filters.push(filter);
            }
            replacements.push(Replacement {
                prepared: shares.prepared(core)?,
                opened,
                filters,
                exchange,
                moderation: new.moderation,
                text: text.to_owned(),
                done: done.clone(),
            });
        }
        Ok(replacements)
    }
}

/// Returns the port for encrypted packets, which is bound at the start; `None` without an encrypted peer.
fn encryption_port(router: &PeConfig) -> Option<u16> {
    router.peers.iter().any(pe::PeerConfig::is_encrypted).then_some(router.encryption_port)
}

/// Returns the interfaces, and whether each leads to the core.
fn sides(router: &PeConfig) -> BTreeMap<&str, bool> {
    let is_core = |name: &str| router.core.iter().any(|core| core == name);
    router.interfaces().into_iter().map(|name| (name, is_core(name))).collect()
}

/// Returns the interfaces a core has open.
fn ports<'a>(router: &'a PeConfig, placement: &VpnPlacement, core: usize) -> BTreeSet<&'a str> {
    let own = router.circuits.iter().filter(|circuit| placement.core(&router.vpns[circuit.vpn].name) == core);
    let customers = own.map(|circuit| circuit.interface.as_str());
    router.core.iter().map(String::as_str).chain(customers).collect()
}

/// Returns a description of each change.
fn differences(old: &PeConfig, new: &PeConfig) -> Vec<String> {
    let mut changes = Vec::new();
    compare("peer", &old.peers, &new.peers, |peer| peer.name.clone(), &mut changes);
    // The indices of peers and VPNs may differ without a change.
    let flows = |router: &PeConfig| -> Vec<(String, pe::VpnFlowConfig, Option<String>)> {
        let of = |vpn: &pe::PeVpnConfig| {
            vpn.flows
                .iter()
                .map(move |flow| {
                    let name = format!("{} with {}", vpn.name, router.peers[flow.peer].name);
                    let reference = flow.reference().map(|index| router.references[index].name.clone());
                    (name, without_numbers(flow), reference)
                })
                .collect::<Vec<_>>()
        };
        router.vpns.iter().flat_map(of).collect()
    };
    compare("flow", &flows(old), &flows(new), |(name, ..)| name.clone(), &mut changes);
    let references = |router: &PeConfig| -> Vec<(String, u32, Vec<String>)> {
        let named =
            |one: &pe::ReferenceConfig| (one.name.clone(), one.number, source_names(router, &one.source));
        router.references.iter().map(named).collect()
    };
    compare("reference", &references(old), &references(new), |(name, ..)| name.clone(), &mut changes);
    let circuits = |router: &PeConfig| -> Vec<(String, pe::CircuitConfig)> {
        let named = |circuit: &pe::CircuitConfig| {
            (router.vpns[circuit.vpn].name.clone(), pe::CircuitConfig { vpn: 0, ..circuit.clone() })
        };
        router.circuits.iter().map(named).collect()
    };
    compare("circuit", &circuits(old), &circuits(new), |(_, circuit)| circuit.name.clone(), &mut changes);
    for (what, is_same) in [
        ("buffers", old.buffers == new.buffers),
        ("moderation", old.moderation == new.moderation),
        ("core", old.core == new.core),
    ] {
        if !is_same {
            changes.push(format!("{what} changed"));
        }
    }
    if new.buffers < old.buffers {
        changes.push("a lower number of buffers takes effect after a restart".into());
    }
    changes
}

/// Returns a flow without the indices that depend on other items.
fn without_numbers(flow: &pe::VpnFlowConfig) -> pe::VpnFlowConfig {
    let mut flow = pe::VpnFlowConfig { peer: 0, ..flow.clone() };
    if let VpnControl::I2vfc(fair::I2vfcConfig { reference: fair::WeightReference::Vpn(index), .. }) =
        &mut flow.settings.control
    {
        *index = 0;
    }
    flow
}

/// Returns the names of the measured flow and of the peers it is published to, or of the publishing peer.
fn source_names(router: &PeConfig, source: &ReferenceSource) -> Vec<String> {
    let peer = |index: &usize| router.peers[*index].name.clone();
    match source {
        ReferenceSource::Flow { vpn, peer: far, publish_to } => {
            let flow = [router.vpns[*vpn].name.clone(), peer(far)];
            flow.into_iter().chain(publish_to.iter().map(peer)).collect()
        }
        ReferenceSource::Peer(from) => vec![peer(from)],
    }
}

fn compare<T: PartialEq>(
    what: &str,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> String,
    changes: &mut Vec<String>,
) {
    let before: BTreeMap<String, &T> = old.iter().map(|one| (name(one), one)).collect();
    let names: BTreeSet<String> = new.iter().map(&name).collect();
    changes.extend(
        before.keys().filter(|name| !names.contains(*name)).map(|name| format!("{what} {name} removed")),
    );
    for one in new {
        match before.get(&name(one)) {
            None => changes.push(format!("{what} {} added", name(one))),
            Some(known) if *known != one => changes.push(format!("{what} {} changed", name(one))),
            Some(_) => {}
        }
    }
}

impl PeDaemon {
    /// Adds fields the engine does not know.
    pub(super) fn complete(&self, snapshot: &mut PeSnapshot) {
        let counts = self.loaded.counts().clone();
        snapshot.configuration.clone_from(&self.loaded.path);
        let unix = i128::from(monotonic_ns()) + realtime_offset_ns();
        snapshot.unix_ns = u64::try_from(unix).unwrap_or_default();
        snapshot.configurations = counts.taken;
        snapshot.refused_configurations = counts.refused;
        snapshot.refusal = counts.refusal;
        let (router, ways) = self.follower.peer_routes();
        if router.cores > 1 {
            snapshot.sort_like(&router);
        }
        let engine_peers = std::mem::take(&mut snapshot.peers);
        snapshot.peers = router
            .peers
            .iter()
            .zip(ways)
            .map(|(peer, way)| {
                let (tunnel, address) = match peer.tunnel {
                    PeerTunnel::MplsInUdp { to, .. } => ("mpls-in-udp", to),
                    PeerTunnel::Mpls { next_hop, .. } => ("mpls", next_hop),
                };
                let known = engine_peers.iter().find(|known| known.name == peer.name);
                let [customer_mtu, largest_customer_mtu] =
                    known.map_or([0; 2], |known| [known.customer_mtu, known.largest_customer_mtu]);
                PeerState {
                    is_encrypted: peer.is_encrypted(),
                    session_age_ns: known.and_then(|known| known.session_age_ns),
                    customer_mtu,
                    largest_customer_mtu,
                    name: peer.name.clone(),
                    tunnel: tunnel.into(),
                    address: Some(address),
                    unreachable: way.as_ref().err().cloned().unwrap_or_default(),
                    route: way.ok().map(|way| PeerRouteState {
                        interface: way.interface,
                        next_hop: way.next_hop,
                        mac: format_mac(way.mac),
                        mtu: way.mtu,
                        path_mtu: way.mtu.saturating_sub(largest_customer_mtu - customer_mtu),
                    }),
                }
            })
            .collect();
        for state in &mut snapshot.flows {
            let vpn = router.vpns.iter().find(|vpn| vpn.name == state.vpn);
            let flow =
                vpn.and_then(|vpn| vpn.flows.iter().find(|flow| router.peers[flow.peer].name == state.peer));
            if let Some(flow) = flow {
                state.weight = flow.settings.weight;
                state.control = control_name(&flow.settings.control).into();
            }
        }
        for state in &mut snapshot.circuits {
            if let Some(circuit) = router.circuits.iter().find(|circuit| circuit.name == state.name) {
                let vlans = circuit.vlans.iter().map(|vlan| format!(".{vlan}"));
                state.place = format!("{}{}", circuit.interface, vlans.collect::<String>());
            }
        }
    }
}

fn control_name(control: &VpnControl) -> &'static str {
    match control {
        VpnControl::None => "none",
        VpnControl::I2vfc(_) => "i2vfc",
        VpnControl::RateConsensus(_) => "rate-consensus",
        VpnControl::FixedRate { .. } => "fixed-rate",
    }
}
