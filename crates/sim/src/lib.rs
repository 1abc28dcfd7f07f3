//! Drives the core in virtual time: a plan and a seed in, an outcome out.
//!
//! The same plan and seed give the same outcome, to the last bit, on any machine.
//! docs/simulator.md tells what is modelled.
#![forbid(unsafe_code)]

mod bins;
mod channel;
mod delay;
mod dialogue;
mod edge;
mod host;
mod packet;
mod recorder;
mod route;
mod stamp;
mod tournament;
mod watch;
mod world;

use netstage_core::queue;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::plan::{Link, Plan, Transport};

/// What of a plan cannot be simulated, in words; `None` where all can.
pub fn refusal(plan: &Plan) -> Option<String> {
    if let Some(routing) = &plan.routing {
        return Some(format!(
            "service.{}: routing daemons are not simulated; run it with --on emu, as root",
            routing.name
        ));
    }
    let by_class = |link: &&Link| {
        link.directions.iter().any(|direction| matches!(direction.queue, queue::Config::Classes(_)))
    };
    if let Some(link) = plan.links.iter().find(by_class) {
        return Some(format!(
            "link.{}: queue \"priority\" is not simulated; run it with --on emu",
            link.name
        ));
    }
    let flow = plan.flows.iter().find(|flow| {
        let modelled = match flow.transport {
            Transport::Tcp(_)
            | Transport::Udp
            | Transport::IcmpEcho
            | Transport::UdpUnreachable
            | Transport::Stamp { .. } => true,
            Transport::Multicast(_) | Transport::Quic => false,
        };
        !modelled
    })?;
    Some(format!(
        "flow.{}: transport \"{}\" is not simulated; run it with --on emu",
        flow.name,
        flow.transport.name()
    ))
}

/// The caller asked for an end before the run had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// How a run is driven; the results do not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Work out channels that only one other feeds without an event of their own.
    pub merge: bool,
}

/// Runs a plan with the random streams of `seed`. `interrupted` is asked now and then.
/// Panics where [`refusal`] refuses the plan.
pub fn run(plan: &Plan, seed: u64, interrupted: &dyn Fn() -> bool) -> Result<Outcome, Interrupted> {
    run_with(plan, seed, Options { merge: true }, interrupted)
}

/// As [`run`], driven as `options` say.
pub fn run_with(
    plan: &Plan,
    seed: u64,
    options: Options,
    interrupted: &dyn Fn() -> bool,
) -> Result<Outcome, Interrupted> {
    let mut world = world::World::new(plan, seed, options.merge);
    let mut samples = recorder::Samples::new(&world);
    if !world.run(interrupted, |world, bin| samples.take(world, bin)) {
        return Err(Interrupted);
    }
    Ok(recorder::outcome(&world, samples))
}
