//! Test of the Linux kernel's MPLS as the router under test, an independent implementation. A virtual machine is used
//! if the kernel lacks MPLS (scripts/vm.sh).

use super::network::{TesterNetwork, assert_received_correctly, ip, ip_with, refusal, trials};
use netstage_harness::needs;
use std::path::Path;
use std::process::Command;

fn the_kernel_pushes_and_swaps() {
    needs::namespaces();
    needs::kernel("MPLS (modprobe mpls_router mpls_iptunnel)", Path::new("/proc/sys/net/mpls").exists());
    let world = TesterNetwork::new("tester-mpls");
    for (name, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/mpls/platform_labels", "10000"),
        ("net/mpls/ip_ttl_propagate", "0"),
        ("net/mpls/conf/eth0/input", "1"),
    ] {
        world.router.sysctl(name, value).unwrap();
    }
    ip(&world.router, "link set lo up\n");
    let test = |operations: &str| {
        let head = format!(
            "router = \"Linux\"\nready_within = \"10 s\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
             sizes = [\"46 B\"]\nmodel = \"pipe\"\noperations = [{operations}]\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 20\n[labels]\npeers = 2\n");
        ip(&world.router, &world.setup(&configuration, "linux"));
        ip_with(&world.router, &["-f", "mpls"], &world.setup(&configuration, "linux-mpls"));
        let output = world.test(&configuration);
        world.remove_record();
        output
    };
    assert_received_correctly(&trials(&test("\"push\"")));
    assert_received_correctly(&trials(&test("\"ip\", \"swap\"")));
    // After the pop, the kernel routes the packet to itself, which counts as an additional hop.
    let error = refusal(&test("\"pop\""));
    assert!(error.contains("TTL 62 instead of 63"), "{error}");
}

fn a_kernel_with_mpls_pushes_and_swaps_in_a_virtual_machine() {
    needs::program("qemu-system-x86_64", "qemu-system-x86");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut machine = Command::new(top.join("scripts/vm.sh"));
    machine.current_dir(&top).arg(std::env::current_exe().unwrap());
    let output = machine.args(["--nocapture", "the_kernel_pushes"]).output().unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
}

netstage_harness::tests![
    the_kernel_pushes_and_swaps,
    #[ignore = "starts a virtual machine"]
    a_kernel_with_mpls_pushes_and_swaps_in_a_virtual_machine,
];
