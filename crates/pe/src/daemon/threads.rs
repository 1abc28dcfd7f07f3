//! Forwarding cores, each with a thread and an engine for some of the VPNs, and their common parts: commands
//! to all cores, the combined state, and the exchange of reference values and news.

use super::forward::{self, PeCommand, PeForwardingThread};
use super::host::Host;
use super::placement::VpnPlacement;
use super::port::AnyPort;
use super::session::RouterEpoch;
use super::snapshot::{self, PeSnapshot};
use super::steering::FilterProgram;
use super::{Log, machine, open};
use crate::engine::{CoreNews, HostProperties, PeEngine, PreparedReplacement};
use netstage_core::fair::PublishedReference;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::PeConfig;
use std::sync::{Arc, Mutex, PoisonError};

/// Handle to all forwarding threads.
#[derive(Debug)]
pub(super) struct ForwardingThreads(Vec<PeForwardingThread>);

impl ForwardingThreads {
    pub fn new(cores: Vec<PeForwardingThread>) -> ForwardingThreads {
        ForwardingThreads(cores)
    }

    pub fn orders(&self) -> AllCommandSenders {
        AllCommandSenders(self.0.iter().map(PeForwardingThread::orders).collect())
    }

    /// Returns whether any thread has ended.
    pub fn is_over(&self) -> bool {
        self.0.iter().any(PeForwardingThread::is_over)
    }

    /// Stops all threads.
    pub fn end(self) {
        self.0.into_iter().for_each(PeForwardingThread::end);
    }
}

/// Sender of commands to all forwarding threads.
#[derive(Clone, Debug)]
pub(super) struct AllCommandSenders(Vec<forward::PeCommandSender>);

impl AllCommandSenders {
    /// Sends a command to every thread.
    pub fn send_all(&self, order: impl Fn() -> PeCommand) {
        self.0.iter().for_each(|core| core.send(order()));
    }

    /// Sends each thread its own command.
    pub fn send_each(&self, orders: impl IntoIterator<Item = PeCommand>) {
        self.0.iter().zip(orders).for_each(|(core, order)| core.send(order));
    }

    /// Returns the combined state, or `None` after the end.
    pub fn show(&self) -> Option<PeSnapshot> {
        let parts: Option<Vec<PeSnapshot>> =
            self.0.iter().map(|core| core.show().map(|part| *part)).collect();
        snapshot::merge(parts?)
    }
}

/// Distance between the session numbers of two cores' VPN flows.
const SESSIONS: u32 = 1 << 24;

/// Configuration divided among cores.
pub(super) struct CoreConfigurations {
    placement: VpnPlacement,
    parts: Vec<PeConfig>,
    machine: HostProperties,
}

impl CoreConfigurations {
    /// Divides the configuration and collects the host properties it needs.
    pub fn new(
        router: &PeConfig,
        placement: VpnPlacement,
        host: &mut Host,
        beginning: &RouterEpoch,
    ) -> Result<CoreConfigurations, StartupError> {
        let machine = machine::machine(router, host, beginning)?;
        let parts = (0..router.cores).map(|core| placement.part(router, core)).collect();
        Ok(CoreConfigurations { placement, parts, machine })
    }

    /// Returns the interfaces of a core, each with its frame filter.
    pub fn interfaces(
        &self,
        core: usize,
        router: &PeConfig,
    ) -> Result<Vec<(&str, Option<FilterProgram>)>, StartupError> {
        let names = self.parts[core].interfaces().into_iter();
        names.map(|name| Ok((name, self.placement.filter(router, name, core)?))).collect()
    }

    /// Creates the engine of a core, with ports of its own.
    pub fn engine(
        &self,
        core: usize,
        host: &Host,
        router: &PeConfig,
        log: &Log,
    ) -> Result<PeEngine<AnyPort>, StartupError> {
        let interfaces = self.interfaces(core, router)?;
        let open =
            |(name, filter): &(&str, Option<FilterProgram>)| open(host, name, router, filter.as_ref(), log);
        let ports = interfaces.iter().map(open).collect::<Result<_, StartupError>>()?;
        PeEngine::new(&self.parts[core], &self.machine(core), ports)
    }

    /// Prepares the new engine state of a running core.
    pub fn prepared(&self, core: usize) -> Result<PreparedReplacement, StartupError> {
        PreparedReplacement::new(&self.parts[core], &self.machine(core))
    }

    fn machine(&self, core: usize) -> HostProperties {
        let session_seed = self.machine.session_seed.wrapping_add(core as u32 * SESSIONS);
        HostProperties { session_seed, ..self.machine.clone() }
    }

    /// Returns the core assignment of the VPNs.
    pub fn into_placement(self) -> VpnPlacement {
        self.placement
    }
}

/// Values that the cores of one router share: the latest of each reference, by number, and news.
#[derive(Debug)]
struct CoreBoard {
    references: Mutex<Vec<Option<PublishedReference>>>,
    news: Mutex<CoreNews>,
}

/// Exchange of a core with the others of its router.
#[derive(Clone, Debug)]
pub(super) struct CoreExchange {
    board: Arc<CoreBoard>,
    core: usize,
}

impl CoreExchange {
    /// Creates the exchange of each core of a router.
    pub fn all(router: &PeConfig) -> impl Iterator<Item = CoreExchange> + use<> {
        let references = if router.cores > 1 { router.references.len() } else { 0 };
        let board = CoreBoard { references: Mutex::new(vec![None; references]), news: Mutex::default() };
        let board = Arc::new(board);
        (0..router.cores).map(move |core| CoreExchange { board: Arc::clone(&board), core })
    }

    /// Exchanges values of references with an engine; the newer ones prevail on both sides.
    pub fn references(&self, engine: &mut PeEngine<AnyPort>) {
        let mut known = self.board.references.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, known) in known.iter_mut().enumerate() {
            let own = engine.reference(number);
            let at = |published: &Option<PublishedReference>| published.map(|published| published.at);
            if at(&own) > at(known) {
                *known = own;
            } else if let Some(newer) = known.filter(|_| at(known) > at(&own)) {
                engine.update_reference(number, newer);
            }
        }
    }

    /// Exchanges news, if the engine has published some.
    pub fn news(&self, engine: &mut PeEngine<AnyPort>) {
        if engine.has_news() {
            let mut shared = self.board.news.lock().unwrap_or_else(PoisonError::into_inner);
            engine.exchange_news(self.core, &mut shared);
        }
    }
}
