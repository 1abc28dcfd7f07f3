//! Runs a plan in virtual time on the core and returns its outcome.
//!
//! The same plan and seed give a bit-identical outcome on any machine. docs/simulator.md describes the
//! models.
//!
//! ```
//! use netstage_scenario::{LoadOptions, parse};
//!
//! let text = "[scenario]\ntitle = \"t\"\nduration = \"1 s\"\n[node.a]\n[node.b]\n[link.l]\nends = [\"a\", \"b\"]\n\
//!             rate = \"1 Mbit/s\"\n[flow.f]\nfrom = \"a\"\nto = \"b\"\n";
//! let scenario = parse("two.toml", text, None, &LoadOptions::default()).unwrap();
//! assert_eq!(netstage_sim::unsupported_feature(&scenario.cells[0].plan), None);
//! ```
//!
//! Invariant: no clock and no I/O.
#![forbid(unsafe_code)]

mod bins;
mod channel;
mod delay;
mod dialogue;
mod host;
mod packet;
mod pe;
mod receiver;
mod recorder;
mod route;
mod stamp;
mod watch;
mod world;

use netstage_core::edge::EdgeEvent;
use netstage_core::queue;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::{FlowTransport, LinkPlan, Plan};

/// Returns the first feature of a plan that cannot be simulated, as a message; `None` if all can.
pub fn unsupported_feature(plan: &Plan) -> Option<String> {
    if let Some(routing) = &plan.routing {
        return Some(format!(
            "service.{}: routing daemons are not simulated; run it with --on emu, as root",
            routing.name
        ));
    }
    if let Some(server) = &plan.route_server {
        return Some(format!(
            "service.{}: route servers are not simulated; run it with --on emu",
            server.name
        ));
    }
    let by_class = |link: &&LinkPlan| {
        link.directions.iter().any(|direction| matches!(direction.queue, queue::QueueConfig::Classes(_)))
    };
    if let Some(link) = plan.links.iter().find(by_class) {
        return Some(format!(
            "link.{}: queue \"priority\" is not simulated; run it with --on emu",
            link.name
        ));
    }
    let flow = plan.flows.iter().find(|flow| {
        let modelled = match flow.transport {
            FlowTransport::Tcp(_)
            | FlowTransport::Udp
            | FlowTransport::IcmpEcho
            | FlowTransport::UdpUnreachable
            | FlowTransport::Stamp { .. } => true,
            FlowTransport::Multicast(_) | FlowTransport::Quic => false,
        };
        !modelled
    })?;
    Some(format!(
        "flow.{}: transport \"{}\" is not simulated; run it with --on emu",
        flow.name,
        flow.transport.name()
    ))
}

/// The caller stopped the run before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// Options of the event loop; they do not change the results.
#[derive(Clone, Copy, Debug)]
pub struct EventLoopOptions {
    /// Process a channel with a single feeder without events of its own.
    pub merge: bool,
}

/// Runs a plan with the random streams of `seed`. `attendant` is polled for a stop request, and notified at
/// the end of each bin. Panics if [`unsupported_feature`] rejects the plan.
pub fn run(plan: &Plan, seed: u64, attendant: &dyn RunObserver) -> Result<RunOutcome, Interrupted> {
    run_with(plan, seed, EventLoopOptions { merge: true }, attendant)
}

/// Runs a plan as [`run`] does, with options.
pub fn run_with(
    plan: &Plan,
    seed: u64,
    options: EventLoopOptions,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, Interrupted> {
    let mut world = world::Simulation::new(plan, seed, options.merge);
    let mut samples = recorder::Samples::new(&world);
    let listens = attendant.wants_bins();
    let end_bin = |world: &mut world::Simulation, bin| {
        samples.take(world, bin);
        // Links are computed ahead of the current time and senders behind it, so only the previous bin is
        // final.
        if listens && bin > 0 {
            attendant.bins_ended(&mut || recorder::partial_outcome(world, &samples, bin));
        }
        attendant.progress(netstage_core::time::Instant(plan.measure.interval.0 * (bin as u64 + 1)));
    };
    if !world.run(&|| attendant.stop(), end_bin) {
        return Err(Interrupted);
    }
    Ok(recorder::outcome(&world, &samples))
}

/// Inputs and decisions of one ingress PE during a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// VPNs that enter at the PE, as indices in the plan. A flow number in `events` is an index into this
    /// list.
    pub vpns: Vec<usize>,
    /// Events in chronological order.
    pub events: Vec<EdgeEvent>,
}

/// Runs a plan as [`run`] does and returns the inputs and decisions of each ingress PE.
pub fn decisions(plan: &Plan, seed: u64) -> Vec<Decisions> {
    let mut world = world::Simulation::new(plan, seed, true);
    world.record_decisions();
    world.run(&|| false, |_, _| {});
    let decisions = |(vpns, events)| Decisions { vpns, events };
    world.decisions().into_iter().map(decisions).collect()
}
