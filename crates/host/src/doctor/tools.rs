//! External programs used by scenarios and comparisons.

use super::Finding;
use std::path::PathBuf;

/// Name of a tool, equivalent programs, and the Debian package.
const TOOLS: [(&str, &[&str], &str); 12] = [
    ("FRR", &["zebra"], "frr"),
    ("BIRD", &["bird"], "bird2"),
    ("RTR server", &["stayrtr"], "stayrtr"),
    ("strongSwan", &["charon", "ipsec", "swanctl"], "strongswan"),
    ("WireGuard", &["wireguard-go", "wg"], "wireguard-tools"),
    ("OpenVPN", &["openvpn"], "openvpn"),
    ("iSCSI target", &["tgtd"], "tgt"),
    ("FTP server", &["vsftpd"], "vsftpd"),
    ("FTP client", &["curl"], "curl"),
    ("iperf3", &["iperf3"], "iperf3"),
    ("tshark", &["tshark"], "tshark"),
    ("tcpdump", &["tcpdump"], "tcpdump"),
];

/// Folders of programs that Debian keeps outside an ordinary user's PATH.
const EXTRA_FOLDERS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/lib/frr", "/usr/lib/ipsec", "/usr/local/sbin"];

pub(super) fn examine() -> Vec<Finding> {
    let finding = |(name, programs, package): (&'static str, &[&str], &str)| {
        let found = programs.iter().find_map(|program| find(program));
        let found = found.map(|path| path.display().to_string()).ok_or("not found");
        Finding::new("Programs", name).with_result(found, format!("apt-get install {package}"))
    };
    TOOLS.map(finding).into()
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(EXTRA_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
