use super::*;
use netstage_live::task::TcpOptions;

fn tcp() -> Transport {
    Transport::Tcp(TcpOptions::default())
}

#[test]
fn a_transfer_arrives_whole_and_ends_the_run() {
    for ip in ["127.0.0.1", "::1"] {
        let size = 3_000_000;
        let task = flow(1, tcp(), Pattern::Bulk { size: Some(size) }, free_tcp_port(ip));
        let (sent, received, report) = run_both(&[task]);
        assert_eq!(total(&sent[0], |counts| counts.sent_bytes), size, "{report:?}");
        assert_eq!(total(&received[0], |counts| counts.received_bytes), size);
    }
}
