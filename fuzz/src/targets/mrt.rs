//! MRT files from arbitrary bytes: read or rejected. Every route that was read can be announced and withdrawn
//! exactly once.

use netstage_routing::bgp::inject::{Injection, InjectionAction, SendOrder};
use netstage_routing::bgp::nlri::BgpFamily;
use netstage_routing::bgp::path::Encoding;
use netstage_routing::bgp::table::{BgpTable, read_mrt};

pub fn run(bytes: &[u8]) {
    let mut table = BgpTable::new();
    let _ = read_mrt(bytes, 10_000, &mut table);
    assert!(table.len() <= 10_000);
    assert_eq!(table.iter().count(), table.len());
    let encoding = Encoding { four_octet_as: false, prepend: Some(70_000), local_preference: None };
    for action in [InjectionAction::Announce, InjectionAction::Withdraw] {
        for order in [SendOrder::Packed, SendOrder::AsListed] {
            let mut injection = Injection::new(&table, action, order, &BgpFamily::ALL);
            let mut messages = Vec::new();
            let written = injection.fill(&table, &encoding, usize::MAX, &mut messages);
            assert_eq!(written.routes, table.len());
            let (mut rest, mut count) = (&messages[..], 0);
            while !rest.is_empty() {
                let length = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
                assert!((23..=4096).contains(&length));
                rest = &rest[length..];
                count += 1;
            }
            assert_eq!(count, written.messages);
        }
    }
}
