//! Other people's programs that scenarios and comparisons run.

use super::Finding;
use std::path::PathBuf;

/// A tool by what it is for, the programs any of which will do, and its Debian package.
const TOOLS: [(&str, &[&str], &str); 11] = [
    ("FRR", &["zebra"], "frr"),
    ("BIRD", &["bird"], "bird2"),
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

/// Where Debian keeps programs that are not in an ordinary user's PATH.
const ALSO: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/lib/frr", "/usr/lib/ipsec", "/usr/local/sbin"];

pub(super) fn examine() -> Vec<Finding> {
    let finding = |(name, programs, package): (&'static str, &[&str], &str)| {
        let found = programs.iter().find_map(|program| find(program));
        let found = found.map(|path| path.display().to_string()).ok_or("not found");
        Finding::new("Programs", name).tried(found, format!("apt-get install {package}"))
    };
    TOOLS.map(finding).into()
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(ALSO.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
