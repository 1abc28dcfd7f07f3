//! The Linux kernel's own MPLS as the router under test: independent of all that is tested elsewhere. Kernels
//! without it have a virtual machine that does (scripts/vm.sh).

use super::world::{World, came_back_right, ip, ip_with, refusal, trials};
use netstage_harness::needs;
use std::path::Path;
use std::process::Command;

fn the_kernel_pushes_and_swaps() {
    needs::namespaces();
    needs::kernel("MPLS (modprobe mpls_router mpls_iptunnel)", Path::new("/proc/sys/net/mpls").exists());
    let world = World::new("tester-mpls");
    for (name, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/mpls/platform_labels", "10000"),
        ("net/mpls/ip_ttl_propagate", "0"),
        ("net/mpls/conf/eth0/input", "1"),
    ] {
        world.router.sysctl(name, value).unwrap();
    }
    ip(&world.router, "link set lo up\n");
    let begin = |operations: &str| {
        let head = format!(
            "router = \"Linux\"\nready_within = \"10 s\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
             sizes = [\"46 B\"]\nmodel = \"pipe\"\noperations = [{operations}]\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 20\n[labels]\npeers = 2\n");
        ip(&world.router, &world.setup(&configuration, "linux"));
        ip_with(&world.router, &["-f", "mpls"], &world.setup(&configuration, "linux-mpls"));
        let output = world.test(&configuration);
        world.forget();
        output
    };
    came_back_right(&trials(&begin("\"push\"")));
    came_back_right(&trials(&begin("\"ip\", \"swap\"")));
    // To look beneath a label it sends the packet to itself, and counts that as a hop more.
    let refused = refusal(&begin("\"pop\""));
    assert!(refused.contains("time to live 62 instead of 63"), "{refused}");
}

fn a_kernel_with_mpls_does_in_a_virtual_machine() {
    needs::program("qemu-system-x86_64", "qemu-system-x86");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut machine = Command::new(top.join("scripts/vm.sh"));
    machine.current_dir(&top).arg(std::env::current_exe().unwrap());
    let output = machine.args(["--nocapture", "the_kernel_pushes"]).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

netstage_harness::tests![
    the_kernel_pushes_and_swaps,
    #[ignore = "starts a virtual machine"]
    a_kernel_with_mpls_does_in_a_virtual_machine,
];
