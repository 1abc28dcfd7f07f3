//! Configuration change of a running engine. Items in both configurations keep their state: a VPN flow its
//! queue, window and counters, a circuit its neighbors. All checks run earlier, while the new state is
//! prepared. Packets wait in the ports meanwhile, so none is lost.

use super::host_properties::HostProperties;
use super::{DisplayNames, EnginePort, EngineState, PeEngine, flows, setup};
use netstage_core::edge::VpnFlowSettings;
use netstage_core::time::Instant;
use netstage_host::ports::FramePort;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::PeConfig;
use std::collections::{HashMap, HashSet};

/// New configuration, ready to apply. Preparing takes long and needs no engine; applying takes microseconds
/// per VPN flow.
#[derive(Debug)]
pub struct PreparedReplacement {
    state: EngineState,
    /// New scheduler settings, per flow.
    settings: Vec<VpnFlowSettings>,
    buffers: usize,
}

impl PreparedReplacement {
    /// Prepares a checked configuration. The epochs of `host_properties` must equal those of the engine it is for.
    pub fn new(router: &PeConfig, machine: &HostProperties) -> Result<PreparedReplacement, StartupError> {
        Ok(PreparedReplacement {
            // The running engine keeps its buffers.
            state: setup::state(router, machine, 0)?,
            settings: flows::all(router).map(|(_, flow)| flow.settings.clone()).collect(),
            buffers: router.buffers as usize,
        })
    }
}

impl<P: FramePort> PeEngine<P> {
    /// Applies a new configuration. `opened` are the ports it adds, or those opened again because another interface has
    /// their name now. Returns the ports it removes.
    ///
    /// # Panics
    ///
    /// Panics if a port is missing or the epochs differ.
    pub fn replace(
        &mut self,
        now: Instant,
        prepared: PreparedReplacement,
        opened: Vec<(String, P)>,
    ) -> Vec<P> {
        let PreparedReplacement { state: mut new, settings, buffers } = prepared;
        let old = &mut self.state;
        assert_eq!(new.epoch, old.epoch, "both have one epoch");
        let names = old.names.ports.clone();
        let mut available: HashMap<String, EnginePort<P>> =
            names.into_iter().zip(self.ports.drain(..)).collect();
        let recreated: HashSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
        available.extend(opened.into_iter().map(|(name, port)| (name, EnginePort { port, failure: None })));
        let ports = new.names.ports.iter();
        self.ports = ports.map(|name| available.remove(name).expect("every port is available")).collect();
        let largest = new.pool.room();
        new.take_over(now, old, &settings, &recreated);
        new.pool.fit(buffers, setup::reserve(self.ports.len()), largest);
        self.state = new;
        available.into_values().map(|attached| attached.port).collect()
    }
}

impl EngineState {
    /// `recreated` are the ports behind which everything may have changed.
    fn take_over(
        &mut self,
        now: Instant,
        old: &mut EngineState,
        settings: &[VpnFlowSettings],
        recreated: &HashSet<String>,
    ) {
        std::mem::swap(&mut self.pool, &mut old.pool);
        std::mem::swap(&mut self.totals, &mut old.totals);
        std::mem::swap(&mut self.alarms, &mut old.alarms);
        self.take_over_flows(now, old, settings);
        self.take_over_references(now, old);
        self.take_over_news(old);
        self.take_over_circuits(old, recreated);
        let before: HashMap<&str, usize> =
            old.names.peers.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        for (number, (name, peer)) in self.names.peers.iter().zip(&mut self.peers).enumerate() {
            let Some(known_number) = before.get(name.as_str()).copied() else { continue };
            self.secure.take_over(number, &mut old.secure, known_number);
            let known = &mut old.peers[known_number];
            let port = &old.names.ports[known.port as usize];
            let port = self.names.ports.iter().position(|name| name == port && !recreated.contains(name));
            if let (true, Some(port)) = (known.encapsulation == peer.encapsulation, port) {
                (peer.port, peer.header, peer.is_reachable) = (port as u32, known.header, known.is_reachable);
                peer.path.take_over(&mut known.path);
                peer.mtu = peer.path.discovery.mtu();
            }
        }
    }

    fn take_over_flows(&mut self, now: Instant, old: &mut EngineState, settings: &[VpnFlowSettings]) {
        let known = flows::matching_old_flows(old.names_of_flows(), self.names_of_flows());
        let mut is_gone = vec![true; old.flows.len()];
        for (number, settings) in settings.iter().enumerate() {
            let Some(known) = known[number] else { continue };
            is_gone[known] = false;
            let from = (old.edge.edge_mut(), known);
            let refused = self.edge.edge_mut().adopt(now, number, from, settings);
            refused.into_iter().for_each(|packet| self.pool.release(packet.buffer));
            let (known, flow) = (&mut old.flows[known], &mut self.flows[number]);
            // Replies to queries already sent stay valid, unless they carry different fields.
            if known.querier.requests_marks() == flow.querier.requests_marks() {
                std::mem::swap(&mut flow.querier, &mut known.querier);
            }
            flow.egress = known.egress;
            flow.counters = known.counters.take();
            flow.balance = known.balance.take();
            flow.is_silent = known.is_silent;
            self.vpns[flow.vpn as usize].held += self.edge.queue_len(number) as u32;
        }
        // Packets queued for removed flows have no destination.
        for number in (0..is_gone.len()).filter(|number| is_gone[*number]) {
            for packet in old.edge.edge_mut().take_queue(now, number) {
                self.pool.release(packet.buffer);
            }
        }
        self.edge.continue_from(&mut old.edge);
    }

    /// Returns the VPN and peer names of each flow.
    fn names_of_flows(&self) -> impl Iterator<Item = (&str, &str)> {
        let DisplayNames { vpns, peers, .. } = &self.names;
        self.flows.iter().map(|flow| (vpns[flow.vpn as usize].as_str(), peers[flow.peer as usize].as_str()))
    }

    fn take_over_circuits(&mut self, old: &mut EngineState, recreated: &HashSet<String>) {
        let before: HashMap<&str, usize> =
            old.names.circuits.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        for (number, name) in self.names.circuits.iter().enumerate() {
            let Some(known) = before.get(name.as_str()).copied() else { continue };
            let (circuit, known_circuit) = (&mut self.circuits[number], &old.circuits[known]);
            (circuit.received, circuit.sent) = (known_circuit.received, known_circuit.sent);
            let port =
                |state: &[String], circuit: &super::EngineCircuit| state[circuit.port as usize].clone();
            let name = port(&self.names.ports, circuit);
            let is_same_link = name == port(&old.names.ports, known_circuit)
                && !recreated.contains(&name)
                && circuit.header.bytes() == known_circuit.header.bytes();
            if is_same_link {
                self.neighbors.adopt(&mut old.neighbors, known as u32, number as u32);
            }
        }
        for packet in old.neighbors.clear() {
            self.pool.release(packet.buffer);
        }
    }
}
