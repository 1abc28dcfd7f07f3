//! Test of Debian's user-mode-linux as the router under test: another Linux kernel with MPLS, as a process in the
//! router's namespace. Its interfaces are AF_PACKET sockets on those of the namespace.

use super::network::{TIMEOUT, TesterNetwork, assert_received_correctly, trials};
use crate::support::{TestProcess, within};
use netstage_harness::skip;
use netstage_host::netns::spawn_in;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KERNEL: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
/// Kernel modules in order of dependency.
const REQUIRED: [&str; 3] = ["net/ipv4/ip_tunnel.ko", "net/mpls/mpls_router.ko", "net/mpls/mpls_iptunnel.ko"];

/// Returns the folder of the kernel's modules, if installed.
fn modules() -> Option<PathBuf> {
    let version = std::fs::read_dir(MODULES).ok()?.next()?.ok()?;
    Path::new(KERNEL).exists().then(|| version.path().join("kernel"))
}

/// Boots the kernel and waits until it has these routes and labels.
fn boot(world: &TesterNetwork, modules: &Path, routes: &str, labels: &str) -> TestProcess {
    let here = world.folder.display();
    let write = |name: &str, text: &str| std::fs::write(world.folder.join(name), text).unwrap();
    write("routes", routes);
    write("labels", labels);
    let loads: String =
        REQUIRED.iter().map(|module| format!("insmod {}\n", modules.join(module).display())).collect();
    let links: String = (0..3)
        .map(|number| {
            format!(
                "ip link set vec{number} name eth{number}\nip link set eth{number} address 02:00:00:00:00:{:02x} up\n\
                 ip address add 192.0.2.{}/30 dev eth{number}\n",
                2 * number + 1,
                4 * number + 1
            )
        })
        .collect();
    // The kernel reads the host's files and can change only those in this folder.
    write(
        "init",
        &format!(
            "#!/bin/sh\nset -e\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nmount -t proc none /proc\n\
             mount -t hostfs none {here} -o {here}\n{loads}ip link set lo up\n{links}\
             echo 1 > /proc/sys/net/ipv4/ip_forward\necho 10000 > /proc/sys/net/mpls/platform_labels\n\
             echo 0 > /proc/sys/net/mpls/ip_ttl_propagate\necho 1 > /proc/sys/net/mpls/conf/eth0/input\n\
             ip -batch {here}/routes\nip -f mpls -batch {here}/labels\ntouch {here}/ready\nexec sleep 3600\n"
        ),
    );
    assert!(Command::new("chmod").arg("+x").arg(world.folder.join("init")).status().unwrap().success());
    let _ = std::fs::remove_file(world.folder.join("ready"));
    // All processes of the kernel end with the first.
    let mut kernel = Command::new("unshare");
    kernel.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", KERNEL]);
    kernel.args([
        "mem=256M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "con=null",
        "con0=null,fd:1",
    ]);
    kernel.args(
        (0..3).map(|number| format!("vec{number}:transport=raw,ifname=eth{number},depth=128,gro=0,mtu=1512")),
    );
    kernel.arg(format!("init={here}/init")).env("TMPDIR", &*world.folder);
    kernel.arg(format!("umid=netstage-{}", std::process::id())).env("HOME", &*world.folder);
    kernel.stdin(Stdio::null()).stdout(std::fs::File::create(world.folder.join("console")).unwrap());
    let process = TestProcess::new(spawn_in(&world.router, kernel).unwrap());
    let is_ready = within(TIMEOUT, || world.folder.join("ready").exists());
    assert!(is_ready, "{}", std::fs::read_to_string(world.folder.join("console")).unwrap());
    process
}

fn another_kernel_pushes_and_swaps() {
    let Some(modules) = modules() else {
        skip("needs user-mode-linux (Debian: user-mode-linux)");
    };
    let world = TesterNetwork::new("tester-uml");
    // Only the other kernel handles received packets.
    for number in 0..3 {
        super::network::ip(&world.router, &format!("address flush dev eth{number}\n"));
        world.router.sysctl(&format!("net/ipv4/conf/eth{number}/arp_ignore"), "8").unwrap();
    }
    for operations in ["\"push\"", "\"ip\", \"swap\", \"php\""] {
        let head = format!(
            "router = \"user-mode-linux\"\nready_within = \"20 s\"\nfrom = [\"west\"]\nto = [\"east\", \"south\"]\n\
             sizes = [\"46 B\"]\nmodel = \"pipe\"\noperations = [{operations}]\n"
        );
        let configuration = world.configure(&head, "[routes]\ncount = 20\n[labels]\npeers = 2\n");
        let commands = ["linux", "linux-mpls"].map(|kind| world.setup(&configuration, kind));
        let _kernel = boot(&world, &modules, &commands[0], &commands[1]);
        let cells = trials(&world.test(&configuration));
        assert_eq!(cells.len(), operations.split(',').count());
        assert_received_correctly(&cells);
        world.remove_record();
    }
}

netstage_harness::tests![
    #[ignore = "boots another kernel, which needs user-mode-linux: make uml"]
    another_kernel_pushes_and_swaps,
];
