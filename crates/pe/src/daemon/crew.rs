//! The cores that forward, each with a thread and an engine of its own for some of the VPNs, and
//! what they have in common: orders to all of them, how all of them stand, and what is known of
//! references.

use super::forward::{self, Forwarding, Order};
use super::host::Host;
use super::placement::Placement;
use super::port::AnyPort;
use super::reload::refused;
use super::session::Beginning;
use super::snapshot::{self, Snapshot};
use super::steering::Program;
use super::{Error, Log, assemble, open};
use crate::engine::config::{Config, Port};
use crate::engine::{Engine, Prepared};
use netstage_core::fair::Published;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::Router;
use std::sync::{Arc, Mutex, PoisonError};

/// All threads, from outside.
#[derive(Debug)]
pub(super) struct Crew(Vec<Forwarding>);

impl Crew {
    pub fn new(cores: Vec<Forwarding>) -> Crew {
        Crew(cores)
    }

    pub fn orders(&self) -> Orders {
        Orders(self.0.iter().map(Forwarding::orders).collect())
    }

    /// Whether one of them has ended.
    pub fn is_over(&self) -> bool {
        self.0.iter().any(Forwarding::is_over)
    }

    /// Ends them.
    pub fn end(self) {
        self.0.into_iter().for_each(Forwarding::end);
    }
}

/// Gives orders to all of them.
#[derive(Clone, Debug)]
pub(super) struct Orders(Vec<forward::Orders>);

impl Orders {
    /// Hands an order to each.
    pub fn give(&self, order: impl Fn() -> Order) {
        self.0.iter().for_each(|core| core.give(order()));
    }

    /// To each its own.
    pub fn give_each(&self, orders: impl IntoIterator<Item = Order>) {
        self.0.iter().zip(orders).for_each(|(core, order)| core.give(order));
    }

    /// How things stand; none after the end.
    pub fn show(&self) -> Option<Snapshot> {
        let parts: Option<Vec<Snapshot>> = self.0.iter().map(|core| core.show().map(|part| *part)).collect();
        snapshot::together(parts?)
    }
}

/// A router divided among cores.
pub(super) struct Shares {
    placement: Placement,
    parts: Vec<Config>,
}

impl Shares {
    /// What the file and the machine say, for each core its part.
    pub fn new(
        router: &Router,
        placement: Placement,
        host: &mut Host,
        beginning: &Beginning,
    ) -> Result<Shares, Error> {
        let whole = assemble::config(router, host, beginning)?;
        let of = placement.cores();
        if of > 1 {
            // What one part has in common with another is seen in the whole only.
            Prepared::new(&whole).map_err(refused)?;
        }
        let parts = (0..of).map(|core| whole.share(core, of, |vpn| placement.core(vpn) == core));
        Ok(Shares { parts: parts.collect(), placement })
    }

    /// Each core's part.
    pub fn parts(&self) -> &[Config] {
        &self.parts
    }

    /// An engine for one core, with ports of its own.
    pub fn engine(
        &self,
        core: usize,
        host: &Host,
        router: &Router,
        log: &Log,
    ) -> Result<Engine<AnyPort>, Error> {
        let config = &self.parts[core];
        let filters = self.filters(core, router)?;
        let ports: Result<Vec<AnyPort>, Obstacle> = config
            .ports
            .iter()
            .zip(&filters)
            .map(|(port, filter)| open(host, &port.name, port.side, router, filter.as_ref(), log))
            .collect();
        Ok(Engine::new(config, ports?).map_err(refused)?)
    }

    /// Which frames arrive at each of a core's ports.
    pub fn filters(&self, core: usize, router: &Router) -> Result<Vec<Option<Program>>, Obstacle> {
        let filter = |port: &Port| self.placement.filter(router, &port.name, core);
        self.parts[core].ports.iter().map(filter).collect()
    }

    /// Where its VPNs are.
    pub fn into_placement(self) -> Placement {
        self.placement
    }
}

/// What the cores of one router tell each other of references, by their numbers.
#[derive(Debug)]
pub(super) struct Board(Mutex<Vec<Option<Published>>>);

impl Board {
    /// For a router's references; one core alone has nobody to tell.
    pub fn new(router: &Router) -> Arc<Board> {
        let references = if router.cores > 1 { router.references.len() } else { 0 };
        Arc::new(Board(Mutex::new(vec![None; references])))
    }

    /// Tells what the engine knows, and tells it what others know: whatever is newer.
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
