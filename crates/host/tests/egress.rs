//! Tests of the kernel's limits on what a group of threads sends.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use netstage_harness::{needs, skip};
use netstage_host::egress::{EgressGroup, EgressLimits};
use netstage_host::netns::netlink::VethOptions;
use pair::Pair;
use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;

fn limits_apply_to_the_threads_of_the_group_only() {
    needs::root();
    let limits = EgressLimits {
        destinations: Some(vec![IpPrefix::new("10.1.0.1".parse().unwrap(), 32).unwrap()]),
        rate: Some(BitRate(1_000_000)),
        ..EgressLimits::default()
    };
    let group = EgressGroup::create(limits).unwrap();
    let pair = Pair::new(VethOptions::default());
    let socket = || UdpSocket::bind("[::]:0").unwrap();
    let inside = |to: &str| {
        let send = || {
            group.enter().unwrap();
            socket().send_to(&[0; 1000], to)
        };
        pair.left.run(send).unwrap()
    };
    inside("[::ffff:10.1.0.1]:9").unwrap();
    assert_eq!(inside("[fd00::1]:9").unwrap_err().kind(), ErrorKind::PermissionDenied);
    let outside = pair.left.run(|| socket().send_to(&[0; 1000], "[::ffff:10.1.0.1]:9")).unwrap();
    outside.unwrap();
    assert_eq!(group.sent().unwrap(), 1028);
    let drops = group.drops();
    assert_eq!((drops.destination, drops.rate), (1, 0));
    for _ in 0..100 {
        let _ = inside("[::ffff:10.1.0.1]:9");
    }
    assert!(group.drops().rate > 0, "{:?}", group.drops());
}

/// Helper of another test: its mount namespace has no hierarchy of cgroups.
fn limits_without_a_mounted_hierarchy() {
    if std::env::var_os("NETSTAGE_TEST_UNMOUNTED").is_none() {
        skip("helper of another test");
    }
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    assert!(!before.contains(" - cgroup2 "), "{before}");
    limits_apply_to_the_threads_of_the_group_only();
    assert_eq!(mounts(), before);
}

fn limits_apply_where_no_hierarchy_is_mounted() {
    needs::root();
    needs::program("unshare", "util-linux");
    let helper = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", "umount --all --lazy --types cgroup2; exec \"$@\"", "sh"])
        .arg(helper)
        .args(["--exact", "limits_without_a_mounted_hierarchy", "--ignored", "--nocapture"])
        .env("NETSTAGE_TEST_UNMOUNTED", "1")
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

netstage_harness::tests![
    limits_apply_to_the_threads_of_the_group_only,
    #[ignore = "started by the test without a mounted hierarchy"]
    limits_without_a_mounted_hierarchy,
    limits_apply_where_no_hierarchy_is_mounted,
];
netstage_harness::main![self];
