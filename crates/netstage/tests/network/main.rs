//! Tests of the program with real packets in network namespaces.

mod agent;
#[path = "../../../../tests/support/apart.rs"]
mod apart;
mod backup;
mod chaos;
mod edges;
mod emulation;
mod exchange;
mod fleet;
mod gateways;
mod interrupted;
mod ip_versions;
mod lan;
mod losses;
mod measure;
mod measure_agents;
mod nat;
mod netem;
mod outlive;
#[path = "../../../../tests/support/pair.rs"]
mod pair;
mod pe;
mod pe_attacks;
mod placed;
mod policy;
mod route_server;
mod router;
#[path = "../support/mod.rs"]
mod support;
mod tails;
mod tcp;
mod tester;
mod tune;
mod vpn_page;

netstage_harness::main![
    agent,
    backup,
    chaos,
    edges,
    emulation,
    exchange,
    fleet,
    gateways,
    interrupted,
    ip_versions,
    lan,
    losses,
    measure,
    measure_agents,
    nat,
    netem,
    outlive,
    pe,
    pe_attacks,
    placed,
    policy,
    route_server,
    router,
    router::answers,
    router::bfd,
    router::bypass,
    router::changes,
    router::freertr,
    router::kernel,
    router::killed,
    router::limits,
    router::output,
    router::rsvp,
    tails,
    tcp,
    tester,
    tester::additional_routes,
    tester::convergence,
    tester::core,
    tester::faults,
    tester::frr,
    tester::gobgp,
    tester::kernel,
    tester::labels,
    tester::ldp,
    tester::ovs,
    tester::uml,
    tester::verdicts,
    tune,
    vpn_page
];
