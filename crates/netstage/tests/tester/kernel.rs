//! The Linux kernel's own MPLS as the router under test: independent of all that is tested elsewhere. Kernels
//! without it have a virtual machine that does (scripts/vm.sh).

use crate::world::{World, came_back_right, ip, ip_with, trials};
use std::path::Path;
use std::process::Command;

#[test]
fn the_kernel_pushes_swaps_and_pops() {
    if !Path::new("/proc/sys/net/mpls").exists() {
        println!("skipped: needs a kernel with MPLS (modprobe mpls_router mpls_iptunnel)");
        return;
    }
    let Some(world) = World::new("tester-mpls") else { return };
    // Beneath a label it looks as if it were another router: only by the pipe model that is one hop.
    for (name, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/mpls/platform_labels", "10000"),
        ("net/mpls/ip_ttl_propagate", "0"),
        ("net/mpls/conf/eth0/input", "1"),
    ] {
        world.router.sysctl(name, value).unwrap();
    }
    ip(&world.router, "link set lo up\n");
    for operations in ["\"push\"", "\"ip\", \"swap\", \"pop\", \"php\", \"unlabelled\""] {
        let head = format!(
            "router = \"Linux\"\nready_within = \"10 s\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
             sizes = [\"46 B\"]\nmodel = \"pipe\"\noperations = [{operations}]\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 20\n[labels]\npeers = 2\n");
        ip(&world.router, &world.setup(&configuration, "linux"));
        ip_with(&world.router, &["-f", "mpls"], &world.setup(&configuration, "linux-mpls"));
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(',').count());
        came_back_right(&cells);
        std::fs::remove_dir_all(world.folder.join("out")).unwrap();
    }
}

#[test]
#[ignore = "starts a virtual machine"]
fn a_kernel_with_mpls_does_in_a_virtual_machine() {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("skipped: needs qemu-system-x86");
        return;
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut machine = Command::new(top.join("scripts/vm.sh"));
    machine.current_dir(&top).arg(std::env::current_exe().unwrap());
    let output = machine.args(["--nocapture", "the_kernel_pushes"]).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed") && !said.contains("skipped"), "{said}");
}
