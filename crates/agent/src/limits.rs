//! Limits on the requests of a controller on another host. Traffic flows only between the two hosts of the
//! control connection, and within the limits of the agent.

use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask, TaskTransport};
use netstage_core::fleet::DEFAULT_MEMORY;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_host::shared_key::ConnectionAddresses;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of flows in one run.
const MAX_FLOWS: usize = 256;
/// First port that flows may use; lower ones are reserved for the system's services.
pub const FIRST_PORT: u16 = 1024;

/// Limits of an agent that serves other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum total rate of all flows, payload bits per second; `None` is unlimited.
    pub rate: Option<BitRate>,
    /// Maximum length of a run; `None` is unlimited.
    pub time: Option<Duration>,
}

impl Limits {
    /// Refuses an assignment that exceeds the limits, or involves another host than the controller's. Fills
    /// in the addresses that are left open with the agent's own and the controller's.
    pub fn apply(&self, assignment: &mut Assignment, peer: ConnectionAddresses) -> Result<(), OrderRefusal> {
        if let Some(max) = self.time.filter(|max| assignment.duration > *max) {
            return Err(refuse(format!(
                "the run would take {:.0} s; this server allows {:.0} s",
                assignment.duration.as_secs_f64(),
                max.as_secs_f64()
            ))
            .remedy("reduce -t, or start the server with a higher --max-time"));
        }
        let memory = assignment.memory_bytes();
        if memory > DEFAULT_MEMORY {
            let (needed, allowed) = (memory.div_ceil(1_000_000), DEFAULT_MEMORY / 1_000_000);
            return Err(refuse(format!(
                "the run needs up to {needed} MB of memory; this server allows {allowed} MB"
            ))
            .remedy("set a longer interval with -i, or use fewer flows"));
        }
        if assignment.edge.is_some() || !assignment.watch.is_empty() {
            return Err(refuse("this server runs no provider edge router and watches no TCP windows"));
        }
        if !assignment.services.is_empty() {
            return Err(refuse("this server does not run services"));
        }
        if assignment.lease.is_some() {
            return Err(refuse("this server ends a run with the connection of its client, without a lease"));
        }
        if assignment.clocks.is_some() {
            return Err(refuse("this server does not compare clocks with third hosts"));
        }
        if assignment.flows.len() > MAX_FLOWS {
            return Err(refuse(format!("{} flows; this server allows {MAX_FLOWS}", assignment.flows.len())));
        }
        let mut rate = 0.0;
        for flow in &mut assignment.flows {
            rate += self.flow(flow, peer).map_err(|refusal| refusal.flow(&flow.name))?;
        }
        if let Some(max) = self.rate.filter(|max| rate > max.as_f64()) {
            return Err(refuse(format!(
                "the flows need {rate:.0} bit/s of payload in total; this server allows {} bit/s",
                max.0
            ))
            .remedy("reduce -b, or start the server with a higher --max-rate"));
        }
        Ok(())
    }

    /// Checks one flow. Returns its mean rate, bits per second.
    fn flow(&self, flow: &mut FlowTask, peer: ConnectionAddresses) -> Result<f64, OrderRefusal> {
        if !matches!(flow.transport, TaskTransport::Tcp(_) | TaskTransport::Udp(_) | TaskTransport::Quic) {
            return Err(refuse("this server supports only TCP, UDP and QUIC"));
        }
        if flow.nat.is_some() {
            return Err(refuse("this server does not search paths through NATs"));
        }
        if flow.spins() {
            return Err(
                refuse("this server's senders do not spin").remedy("omit --spin, or send from the client")
            );
        }
        let Some(pattern) = flow.traffic.pattern() else {
            return Err(refuse("this server supports traffic patterns, not applications"));
        };
        let rate = pattern.mean_rate();
        if self.rate.is_some() && rate.is_none() {
            return Err(
                refuse("the flow has no rate, and this server limits rates").remedy("set a rate with -b")
            );
        }
        let (own, other) = match flow.side {
            FlowSide::Send => (&mut flow.source, &mut flow.destination),
            FlowSide::Receive => (&mut flow.destination, &mut flow.source),
        };
        settle(own, peer.local, "this server")?;
        settle(other, peer.remote, "the client")?;
        if (1..FIRST_PORT).contains(&own.port()) {
            return Err(refuse(format!("port {} is reserved for the system", own.port()))
                .remedy(format!("use port {FIRST_PORT} or above")));
        }
        Ok(rate.unwrap_or(0.0))
    }
}

/// Fills in an unspecified address with that of the connection, and refuses any other address.
fn settle(address: &mut SocketAddr, connection: SocketAddr, whose: &str) -> Result<(), OrderRefusal> {
    let canonical: IpAddr = address.ip().to_canonical();
    if canonical.is_unspecified() || canonical == connection.ip() {
        let port = address.port();
        // Including the scope of a link-local address.
        *address = connection;
        address.set_port(port);
        return Ok(());
    }
    Err(refuse(format!("{canonical} is not the address of {whose}, which is {}", connection.ip()))
        .remedy("use only the addresses of the two hosts of the control connection"))
}

fn refuse(reason: impl Into<String>) -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Policy, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::task::{ClockTask, OneEnded, TcpOptions, UdpOptions};
    use netstage_core::traffic::Pattern;

    const CBR: Pattern = Pattern::Cbr { rate: BitRate(1_000_000), packet: 1000 };

    fn peer() -> ConnectionAddresses {
        ConnectionAddresses {
            remote: "192.0.2.7:40000".parse().unwrap(),
            local: "192.0.2.1:5201".parse().unwrap(),
        }
    }

    fn flow(
        side: FlowSide,
        source: &str,
        destination: &str,
        transport: TaskTransport,
        pattern: Pattern,
    ) -> FlowTask {
        FlowTask {
            transport,
            ..FlowTask::udp(
                "1",
                side,
                [source, destination].map(|end| end.parse().unwrap()),
                pattern,
                Duration::from_secs(1),
            )
        }
    }

    fn applied(limits: Limits, flows: Vec<FlowTask>) -> Result<Assignment, OrderRefusal> {
        let duration = Duration::from_secs(10);
        let interval = Duration::from_secs(1);
        let mut assignment = Assignment::of_flows("far", duration, interval, flows);
        limits.apply(&mut assignment, peer()).map(|()| assignment)
    }

    fn udp() -> TaskTransport {
        TaskTransport::Udp(UdpOptions::default())
    }

    #[test]
    fn traffic_goes_only_to_the_controllers_host() {
        let open = [
            flow(FlowSide::Send, "0.0.0.0:0", "0.0.0.0:5000", udp(), CBR),
            flow(FlowSide::Receive, "0.0.0.0:0", "0.0.0.0:0", udp(), CBR),
        ];
        let filled = applied(Limits::default(), open.to_vec()).unwrap().flows;
        assert_eq!(filled[0].source, "192.0.2.1:0".parse().unwrap());
        assert_eq!(filled[0].destination, "192.0.2.7:5000".parse().unwrap());
        assert_eq!(filled[1].source, "192.0.2.7:0".parse().unwrap());
        assert_eq!(filled[1].destination, "192.0.2.1:0".parse().unwrap());
        for (side, source, destination) in [
            (FlowSide::Send, "0.0.0.0:0", "198.51.100.1:5000"),
            (FlowSide::Send, "198.51.100.1:0", "192.0.2.7:5000"),
            (FlowSide::Receive, "198.51.100.1:0", "0.0.0.0:0"),
            (FlowSide::Receive, "192.0.2.7:0", "198.51.100.1:0"),
            (FlowSide::Receive, "192.0.2.7:0", "192.0.2.1:22"),
        ] {
            let refused = applied(Limits::default(), vec![flow(side, source, destination, udp(), CBR)]);
            assert_eq!(refused.unwrap_err().kind, OrderRefusalKind::Policy, "{source} {destination}");
        }
    }

    #[test]
    fn transports_without_an_agreed_receiver_are_refused() {
        let echo = TaskTransport::IcmpEcho(OneEnded::default());
        let multicast = TaskTransport::Multicast { source: None, ttl: 1, receiver: None };
        for transport in [echo, multicast] {
            let flow = flow(FlowSide::Send, "0.0.0.0:0", "192.0.2.7:0", transport, CBR);
            assert!(applied(Limits::default(), vec![flow]).is_err());
        }
    }

    #[test]
    fn the_senders_of_a_server_do_not_spin() {
        let spinning = |side, source, destination| {
            let options = UdpOptions { spin: true, ..UdpOptions::default() };
            applied(
                Limits::default(),
                vec![flow(side, source, destination, TaskTransport::Udp(options), CBR)],
            )
        };
        let refusal = spinning(FlowSide::Send, "0.0.0.0:0", "0.0.0.0:5000").unwrap_err();
        assert!(refusal.to_string().contains("--spin"), "{refusal}");
        assert!(spinning(FlowSide::Receive, "0.0.0.0:0", "0.0.0.0:0").is_ok());
    }

    #[test]
    fn clocks_are_not_compared_with_third_hosts() {
        let mut assignment =
            Assignment::of_flows("far", Duration::from_secs(10), Duration::from_secs(1), Vec::new());
        let asks = vec![("192.0.2.1:0".parse().unwrap(), "192.0.2.9:4704".parse().unwrap())];
        assignment.clocks = Some(ClockTask { key: String::new(), answers: Vec::new(), asks });
        assert!(Limits::default().apply(&mut assignment, peer()).is_err());
    }

    #[test]
    fn limits_apply_to_the_sum_of_all_flows() {
        let sends = || flow(FlowSide::Send, "0.0.0.0:0", "0.0.0.0:5000", udp(), CBR);
        let limits = Limits { rate: Some(BitRate(2_000_000)), time: Some(Duration::from_secs(10)) };
        assert!(applied(limits, vec![sends(), sends()]).is_ok());
        let error = applied(limits, vec![sends(), sends(), sends()]).unwrap_err();
        assert!(error.to_string().contains("--max-rate"), "{error}");
        let bulk = Pattern::Bulk { size: None };
        let tcp =
            flow(FlowSide::Send, "0.0.0.0:0", "0.0.0.0:1", TaskTransport::Tcp(TcpOptions::default()), bulk);
        assert!(applied(limits, vec![tcp.clone()]).unwrap_err().remedy.contains("-b"));
        assert!(applied(Limits::default(), vec![tcp]).is_ok());
        let brief = Limits { time: Some(Duration::from_secs(9)), ..limits };
        assert!(applied(brief, vec![]).unwrap_err().remedy.contains("--max-time"));
        assert!(applied(limits, vec![sends(); MAX_FLOWS + 1]).is_err());
        let mut fine = Assignment::of_flows("far", limits.time.unwrap(), Duration(1), vec![sends()]);
        let error = limits.apply(&mut fine, peer()).unwrap_err();
        assert!(error.to_string().contains("of memory"), "{error}");
    }
}
