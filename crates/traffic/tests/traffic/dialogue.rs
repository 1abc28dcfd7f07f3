use super::*;
use netstage_agent_api::task::{TcpOptions, UdpOptions};
use netstage_core::traffic::FlowTraffic;
use netstage_core::traffic::application::{
    Application, Codec, Dns, FetchMode, Quality, SizeDistribution, TransferDirection, Transfers, Voice, Web,
};
use netstage_harness::needs;

const VOICE: Voice = Voice {
    codec: Codec::G711,
    rate: BitRate(64_000),
    packet: Duration::from_millis(20),
    spurts: None,
    jitter_buffer: Duration::from_millis(60),
};

fn both(transport: TaskTransport, application: Application, port: SocketAddr) -> (FlowResult, FlowResult) {
    let task = FlowTask { traffic: FlowTraffic::Application(application), ..flow(1, transport, CBR, port) };
    let (mut client, mut server, report) = run_both(&[task]);
    assert_eq!(report.flows.iter().filter_map(|flow| flow.error.as_ref()).next(), None, "{report:?}");
    (client.remove(0), server.remove(0))
}

fn quality_sum(flow: &FlowResult, field: impl Fn(&Quality) -> u64) -> u64 {
    flow.quality.iter().map(field).sum()
}

fn both_ends_of_an_application_receive_the_messages_of_the_other() {
    needs::time(3);
    let udp = || TaskTransport::Udp(UdpOptions::default());
    let tcp = || TaskTransport::Tcp(TcpOptions::default());
    let dns = Dns {
        query: 40,
        answer: SizeDistribution::constant(120),
        interval: millis(20),
        timeout: millis(400),
        attempts: 2,
        server: Duration::ZERO,
    };
    let transfers = Transfers {
        size: SizeDistribution::constant(200_000),
        think: millis(10),
        direction: TransferDirection::Download,
        files: Some(3),
    };
    let web = Web {
        main: SizeDistribution::constant(10_000),
        objects: 5.0,
        spread: false,
        object: SizeDistribution::constant(3_000),
        request: 350,
        fetching: FetchMode::Parallel(3),
        parse: millis(1),
        think: millis(10),
        server: Duration::ZERO,
    };
    let (client, server) = both(udp(), Application::Voice(VOICE), free_port("127.0.0.1"));
    assert!(total(&client, |counts| counts.sent) >= 20, "25 packets in half a second, in each direction");
    assert_eq!(total(&client, |counts| counts.sent), server.received());
    assert_eq!(total(&server, |counts| counts.sent), client.received());

    let (client, _) = both(udp(), Application::Dns(dns), free_port("::1"));
    let times = &client.quality_distributions.transaction_time;
    let counted: u64 = times.iter().map(|(_, count)| count).sum();
    assert!(counted > 0 && counted == quality_sum(&client, |quality| quality.transactions));

    let (client, server) = both(tcp(), Application::Transfers(transfers), free_port("::1"));
    assert!(quality_sum(&client, |quality| quality.transactions) > 0);
    assert!(received_bytes(&client) <= total(&server, |counts| counts.sent_bytes));

    let (client, _) = both(tcp(), Application::Web(web), free_port("127.0.0.1"));
    assert!(quality_sum(&client, |quality| quality.pages) > 0);
}

netstage_harness::tests![both_ends_of_an_application_receive_the_messages_of_the_other];
