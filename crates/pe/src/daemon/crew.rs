//! Forwarding cores, each with a thread and an engine for some of the VPNs, and their common parts: commands
//! to all cores, the combined state, and the exchange of reference values.

use super::forward::{self, Forwarding, Order};
use super::host::Host;
use super::placement::Placement;
use super::port::AnyPort;
use super::session::Beginning;
use super::snapshot::{self, Snapshot};
use super::steering::Program;
use super::{Log, machine, open};
use crate::engine::{Engine, Machine, Prepared};
use netstage_core::fair::Published;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::Router;
use std::sync::{Arc, Mutex, PoisonError};

/// Handle to all forwarding threads.
#[derive(Debug)]
pub(super) struct Crew(Vec<Forwarding>);

impl Crew {
    pub fn new(cores: Vec<Forwarding>) -> Crew {
        Crew(cores)
    }

    pub fn orders(&self) -> Orders {
        Orders(self.0.iter().map(Forwarding::orders).collect())
    }

    /// Returns whether any thread has ended.
    pub fn is_over(&self) -> bool {
        self.0.iter().any(Forwarding::is_over)
    }

    /// Stops all threads.
    pub fn end(self) {
        self.0.into_iter().for_each(Forwarding::end);
    }
}

/// Sender of commands to all forwarding threads.
#[derive(Clone, Debug)]
pub(super) struct Orders(Vec<forward::Orders>);

impl Orders {
    /// Sends a command to every thread.
    pub fn give(&self, order: impl Fn() -> Order) {
        self.0.iter().for_each(|core| core.give(order()));
    }

    /// Sends each thread its own command.
    pub fn give_each(&self, orders: impl IntoIterator<Item = Order>) {
        self.0.iter().zip(orders).for_each(|(core, order)| core.give(order));
    }

    /// Returns the combined state, or `None` after the end.
    pub fn show(&self) -> Option<Snapshot> {
        let parts: Option<Vec<Snapshot>> = self.0.iter().map(|core| core.show().map(|part| *part)).collect();
        snapshot::together(parts?)
    }
}

/// Distance between the session numbers of two cores' VPN flows.
const SESSIONS: u32 = 1 << 24;

/// Configuration divided among cores.
pub(super) struct Shares {
    placement: Placement,
    parts: Vec<Router>,
    machine: Machine,
}

impl Shares {
    /// Divides the configuration and collects the host properties it needs.
    pub fn new(
        router: &Router,
        placement: Placement,
        host: &mut Host,
        beginning: &Beginning,
    ) -> Result<Shares, Obstacle> {
        let machine = machine::machine(router, host, beginning)?;
        let parts = (0..router.cores).map(|core| placement.part(router, core)).collect();
        Ok(Shares { placement, parts, machine })
    }

    /// Returns the interfaces of a core, each with its frame filter.
    pub fn interfaces(&self, core: usize, router: &Router) -> Result<Vec<(&str, Option<Program>)>, Obstacle> {
        let names = self.parts[core].interfaces().into_iter();
        names.map(|name| Ok((name, self.placement.filter(router, name, core)?))).collect()
    }

    /// Creates the engine of a core, with ports of its own.
    pub fn engine(
        &self,
        core: usize,
        host: &Host,
        router: &Router,
        log: &Log,
    ) -> Result<Engine<AnyPort>, Obstacle> {
        let interfaces = self.interfaces(core, router)?;
        let open = |(name, filter): &(&str, Option<Program>)| open(host, name, router, filter.as_ref(), log);
        let ports = interfaces.iter().map(open).collect::<Result<_, Obstacle>>()?;
        Engine::new(&self.parts[core], &self.machine(core), ports)
    }

    /// Prepares the new engine state of a running core.
    pub fn prepared(&self, core: usize) -> Result<Prepared, Obstacle> {
        Prepared::new(&self.parts[core], &self.machine(core))
    }

    fn machine(&self, core: usize) -> Machine {
        let session_seed = self.machine.session_seed.wrapping_add(core as u32 * SESSIONS);
        Machine { session_seed, ..self.machine.clone() }
    }

    /// Returns the core assignment of the VPNs.
    pub fn into_placement(self) -> Placement {
        self.placement
    }
}

/// Latest values of each reference, by number, shared between the cores of one router.
#[derive(Debug)]
pub(super) struct Board(Mutex<Vec<Option<Published>>>);

impl Board {
    /// Creates storage for the references of a router; empty with a single core.
    pub fn new(router: &Router) -> Arc<Board> {
        let references = if router.cores > 1 { router.references.len() } else { 0 };
        Arc::new(Board(Mutex::new(vec![None; references])))
    }

    /// Exchanges values with an engine; the newer ones prevail on both sides.
    pub fn exchange(&self, engine: &mut Engine<AnyPort>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, known) in known.iter_mut().enumerate() {
            let own = engine.reference(number);
            let at = |published: &Option<Published>| published.map(|published| published.at);
            if at(&own) > at(known) {
                *known = own;
            } else if let Some(newer) = known.filter(|_| at(known) > at(&own)) {
                engine.tell_reference(number, newer);
            }
        }
    }
}
