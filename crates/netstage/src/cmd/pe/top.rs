//! `netstage pe top`: shows the rates of a router's VPN flows, periodically.

use super::{Socket, connect, no_answer};
use crate::cmd::table::{Table, rate, time};
use crate::exit::{Failure, OK, print};
use netstage_pe::daemon::snapshot::{FlowState, PeSnapshot};
use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "Examples:
  netstage pe top
  netstage pe top --every 5 --count 12 --flows 100";

/// Options of `pe top`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    router: Socket,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// Stop after N updates
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Show the N flows with the highest send rate
    #[arg(long, value_name = "N", default_value = "40")]
    flows: usize,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3_600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0.1 to 3600".into())
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::run(format!("cannot install a signal handler: {error}")))?;
    let mut client = connect(&arguments.router)?;
    let mut before = client.show().map_err(no_answer)?;
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut updates = 0;
    while arguments.count.is_none_or(|count| updates < count) {
        if !sleep(arguments.every) {
            break;
        }
        let now = client.show().map_err(no_answer)?;
        print(format!("{clear}{}\n", page(&before, &now, arguments.flows)).as_bytes())?;
        (before, updates) = (now, updates + 1);
    }
    Ok(OK)
}

/// Sleeps, and returns `false` if the user stops the command.
fn sleep(duration: Duration) -> bool {
    let end = Instant::now() + duration;
    while !STOPPED.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    false
}

fn page(before: &PeSnapshot, now: &PeSnapshot, max: usize) -> String {
    let interval = now.uptime_ns.saturating_sub(before.uptime_ns).max(1) as f64 / 1e9;
    let key = |flow: &FlowState| (flow.vpn.clone(), flow.peer.clone());
    let known: HashMap<(String, String), &FlowState> =
        before.flows.iter().map(|flow| (key(flow), flow)).collect();
    let idle = FlowState::default();
    let bits = |now: u64, before: u64| now.saturating_sub(before) as f64 * 8.0 / interval;
    let mut flows: Vec<(&FlowState, &FlowState)> =
        now.flows.iter().map(|flow| (flow, *known.get(&key(flow)).unwrap_or(&&idle))).collect();
    flows.sort_by_key(|(flow, before)| std::cmp::Reverse(flow.sent.bytes.saturating_sub(before.sent.bytes)));
    let total = |of: &dyn Fn(&FlowState) -> u64| -> f64 {
        flows.iter().map(|(flow, before)| bits(of(flow), of(before))).sum()
    };
    let silent = now.flows.iter().filter(|flow| flow.is_silent).count();
    let lost: usize = now.peers.iter().filter(|peer| peer.route.is_none()).count();
    let mut text = format!(
        "up {}, {} VPN flows, sending {}, receiving {}",
        time(now.uptime_ns),
        now.flows.len(),
        rate(total(&|flow| flow.sent.bytes)),
        rate(total(&|flow| flow.received.bytes)),
    );
    if silent > 0 {
        text.push_str(&format!(", {silent} SILENT"));
    }
    let old = now.references.iter().filter(|reference| reference.is_old).count();
    if old > 0 {
        text.push_str(&format!(", {old} references OLD"));
    }
    if lost > 0 {
        text.push_str(&format!(", {lost} peers UNREACHABLE"));
    }
    let heads = [
        "VPN",
        "peer",
        ">weight",
        ">send rate",
        ">receive rate",
        ">lost/s",
        ">dropped/s",
        ">queue",
        ">window",
        ">in flight",
        ">round trip",
        "",
    ];
    let mut table = Table::new(&heads);
    for (flow, before) in flows.iter().take(max) {
        let window = flow.window.as_ref();
        let per_second =
            |now: u64, before: u64| format!("{:.0}", now.saturating_sub(before) as f64 / interval);
        let lost = |flow: &FlowState| flow.lost().unwrap_or(0);
        table.row([
            flow.vpn.clone(),
            flow.peer.clone(),
            flow.weight.to_string(),
            rate(bits(flow.sent.bytes, before.sent.bytes)),
            rate(bits(flow.received.bytes, before.received.bytes)),
            per_second(lost(flow), lost(before)),
            per_second(flow.queue_drops(), before.queue_drops()),
            flow.queue.to_string(),
            window.map_or("-".into(), |window| format!("{:.1}", window.packets)),
            window.map_or("-".into(), |window| window.in_flight.to_string()),
            flow.round_trip_ns().map_or("-".into(), time),
            if flow.is_silent { "SILENT".into() } else { String::new() },
        ]);
    }
    let hidden = flows.len().saturating_sub(max);
    let rest = if hidden > 0 { format!("and {hidden} more (--flows)\n") } else { String::new() };
    format!("{text}\n\n{}{rest}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_pe::daemon::snapshot::TrafficState;

    #[test]
    fn rates_are_averages_between_two_updates() {
        let state = |seconds: u64, red: u64, blue: u64| PeSnapshot {
            uptime_ns: seconds * 1_000_000_000,
            flows: [("red", red), ("blue", blue)]
                .map(|(vpn, bytes)| FlowState {
                    vpn: vpn.into(),
                    sent: TrafficState { packets: 1, bytes },
                    ..FlowState::default()
                })
                .into(),
            ..PeSnapshot::default()
        };
        let page = page(&state(10, 1_000, 0), &state(12, 251_000, 2_500_000), 1);
        // 250 kB and 2.5 MB in 2 s; the flow with the highest rate comes first.
        assert!(page.contains("sending 11.0 Mbit/s") && page.contains("10.0 Mbit/s"), "{page}");
        assert!(page.contains("blue") && !page.contains("red") && page.contains("and 1 more"), "{page}");
        assert_eq!(seconds("0"), Err("expected a number of seconds from 0.1 to 3600".into()));
    }
}
