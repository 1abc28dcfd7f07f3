//! Configuration of a router, read and checked like a scenario: same scalars, positions and help.

mod bfd;
mod file;
mod rsvp;

pub use bfd::BfdSettings;
pub use rsvp::{RsvpInterfaceSettings, RsvpSettings, RsvpTunnelSettings};

use crate::error::{Errors, Problems, SourceRange, did_you_mean};
use crate::file::control::ClassTable;
use crate::read::{configuration, read_text};
use crate::scalar::InterfaceName;
use crate::table::{Decode, Located};
use netstage_core::fair;
use netstage_core::forward::{SourceCheck, TunnelModel};
use netstage_core::quantity::BitRate;
use netstage_core::queue::TrafficClass;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Configuration of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterConfig {
    /// Interfaces to forward between.
    pub interfaces: Vec<InterfaceConfig>,
    /// Routing tables. The first is for interfaces outside any VPN.
    pub tables: Vec<RoutingTableConfig>,
    /// Path of the control socket.
    pub control: PathBuf,
    /// Listening address of the Prometheus exporter, if enabled.
    pub metrics: Option<SocketAddr>,
    /// File of routes and labels.
    pub routes: Option<PathBuf>,
    /// Use of the kernel's routes and labels.
    pub follow_kernel: bool,
    /// Listening address for a forwarding plane manager.
    pub fpm: Option<SocketAddr>,
    /// Forwarding path.
    pub fast_path: FastPath,
    /// Relation of the time to live and traffic class of a label to those of the packet below.
    pub model: TunnelModel,
    /// Rows of 256 IPv4 routes below the first row, per table.
    pub v4_rows: usize,
    /// Rows of 256 IPv6 routes below the first row, per table.
    pub v6_rows: usize,
    /// Maximum number of next hops and groups of next hops.
    pub next_hops: usize,
    /// Granularity of packet counters of routes.
    pub count: CounterGranularity,
    /// Behavior of the kernel program when the router process is killed.
    pub when_killed: KilledBehavior,
    /// Folder where the kernel program is pinned with [`KilledBehavior::Forward`].
    pub pins: PathBuf,
    /// RSVP-TE, if the router speaks it.
    pub rsvp: Option<RsvpSettings>,
    /// BFD, if the router speaks it.
    pub bfd: Option<BfdSettings>,
    /// Sources of loop-free alternates, if the router uses them.
    pub alternates: Option<LfaSettings>,
}

/// Sockets of FRR's daemons from which loop-free alternates are calculated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LfaSettings {
    /// Command line of ospfd.
    pub ospfd: PathBuf,
    /// Command line of ldpd; required if interfaces accept labels.
    pub ldpd: Option<PathBuf>,
}

/// Interface of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct InterfaceConfig {
    /// Name of the interface.
    pub name: String,
    /// Index of its routing table.
    pub table: usize,
    /// Labeled packets are accepted.
    pub mpls: bool,
    /// RSVP packets on their way to other hosts are for this router.
    pub rsvp: bool,
    /// Verification of the sources of forwarded packets.
    pub source_check: SourceCheck,
    /// Limit of the sending rate, if any.
    pub shaping: Option<Shaping>,
}

impl InterfaceConfig {
    /// Creates an interface that accepts packets without labels from any source.
    pub fn new(name: String, table: usize) -> InterfaceConfig {
        InterfaceConfig {
            name,
            table,
            mpls: false,
            rsvp: false,
            source_check: SourceCheck::Off,
            shaping: None,
        }
    }
}

/// Sending rate and queues of an interface.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaping {
    /// Sending rate of frames, including the Ethernet header.
    pub rate: BitRate,
    /// Queue classes, at least one.
    pub classes: Vec<TrafficClass>,
}

/// Routing table of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingTableConfig {
    /// Name of the VPN, or `main`.
    pub name: String,
    /// Number of the kernel routing table.
    pub kernel: Option<u32>,
}

/// Forwarding path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// XDP on interfaces that support it, user space on others.
    Auto,
    /// XDP only.
    Xdp,
    /// User space.
    Off,
}

/// Granularity of packet counters of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterGranularity {
    /// One counter for all routes with the same next hops.
    NextHop,
    /// One counter per prefix.
    Prefix,
}

/// Behavior of the kernel program when the router process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KilledBehavior {
    /// It stops forwarding.
    Stop,
    /// It continues to forward.
    Forward,
}

/// Main routing table of the kernel.
const MAIN: u32 = 254;

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<RouterConfig, Errors> {
    parse(&path.display().to_string(), &read_text(path, "configuration")?)
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<RouterConfig, Errors> {
    let mut router = configuration(name, text, |file, problems| Some(build(file, problems)))?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    router.routes = router.routes.map(|file| folder.join(file));
    if let Some(LfaSettings { ospfd, ldpd }) = &mut router.alternates {
        [Some(ospfd), ldpd.as_mut()].into_iter().flatten().for_each(|socket| *socket = folder.join(&*socket));
    }
    let interfaces = router.rsvp.iter_mut().flat_map(|rsvp| &mut rsvp.interfaces);
    interfaces.flat_map(|interface| &mut interface.keys).for_each(|(_, file)| *file = folder.join(&*file));
    Ok(router)
}

/// Returns the reference of the configuration's tables, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&file::RouterFile::kind())
}

fn build(file: &file::RouterFile, problems: &mut Problems) -> RouterConfig {
    let head = &file.router;
    let mut interfaces: Vec<InterfaceConfig> = Vec::new();
    let mut add = |name: &Located<InterfaceName>, table: usize, problems: &mut Problems| {
        if interfaces.iter().any(|known| known.name == name.value.0) {
            let message = format!("`{}` is listed twice", name.value.0);
            problems.push_help(name.place, message, "an interface belongs to one table: list it once");
            return;
        }
        let name = name.value.0.clone();
        interfaces.push(InterfaceConfig::new(name, table));
    };
    let mut tables = vec![RoutingTableConfig { name: "main".into(), kernel: Some(MAIN) }];
    head.interfaces.0.iter().for_each(|name| add(name, 0, problems));
    for member in file.vpn.0.iter() {
        let Some(vpn) = &member.value else { continue };
        if member.name == "main" {
            problems.push_help(
                member.place,
                "`main` is reserved for interfaces outside any VPN",
                "choose another name for this VPN",
            );
        }
        vpn.interfaces.0.iter().for_each(|name| add(name, tables.len(), problems));
        tables.push(RoutingTableConfig {
            name: member.name.clone(),
            kernel: vpn.kernel_table.map(|table| table.0 as u32),
        });
    }
    for name in &head.mpls.0 {
        if let Some(interface) = find_interface(&mut interfaces, &name.value.0, name.place, problems) {
            interface.mpls = true;
        }
    }
    set_source_checks(head, &mut interfaces, problems);
    for member in file.port.0.iter() {
        let Some(port) = &member.value else { continue };
        if let Some(interface) = find_interface(&mut interfaces, &member.name, member.place, problems) {
            let mut classes: Vec<TrafficClass> =
                port.classes.0.iter().map(ClassTable::traffic_class).collect();
            if classes.is_empty() {
                let packets = fair::I2vfcConfig::default().queue;
                let all = TrafficClass {
                    codepoints: Vec::new(),
                    priority: 0,
                    weight: 1.0,
                    packets,
                    fq_codel: None,
                };
                classes.push(all);
            }
            interface.shaping = Some(Shaping { rate: port.rate, classes });
        }
    }
    let rsvp = file.rsvp.as_ref().map(|section| rsvp::build(section, &mut interfaces, problems));
    let alternates = file.alternates.as_ref().map(|section| alternates(section, &interfaces, problems));
    RouterConfig {
        alternates,
        rsvp,
        bfd: file.bfd.as_ref().map(|section| bfd::build(section, problems)),
        interfaces,
        tables,
        control: head.control.0.clone().into(),
        routes: head.routes.as_ref().map(|path| path.0.clone().into()),
        follow_kernel: head.follow_kernel,
        fpm: head.fpm.as_ref().map(|fpm| fpm.0),
        fast_path: head.fast_path,
        model: head.model,
        v4_rows: head.v4_rows.0 as usize,
        v6_rows: head.v6_rows.0 as usize,
        next_hops: head.next_hops.0 as usize,
        metrics: head.metrics.as_ref().map(|listen| listen.0),
        count: head.count,
        when_killed: head.when_killed,
        pins: head.pins.0.clone().into(),
    }
}

fn alternates(
    section: &Located<file::AlternatesSection>,
    interfaces: &[InterfaceConfig],
    problems: &mut Problems,
) -> LfaSettings {
    let file::AlternatesSection { ospfd, ldpd } = &section.value;
    if ldpd.is_none() && interfaces.iter().any(|interface| interface.mpls) {
        let help = "set `ldpd` to the command-line socket of FRR's ldpd";
        problems.push_help(section.place, "the alternates of packets with labels are unknown", help);
    }
    LfaSettings { ospfd: ospfd.0.clone().into(), ldpd: ldpd.as_ref().map(|path| path.0.clone().into()) }
}

/// Sets the verification of sources of each interface.
fn set_source_checks(
    head: &file::RouterSection,
    interfaces: &mut [InterfaceConfig],
    problems: &mut Problems,
) {
    for (names, check) in [(&head.urpf_loose, SourceCheck::Loose), (&head.urpf_strict, SourceCheck::Strict)] {
        for name in &names.0 {
            let Some(interface) = find_interface(interfaces, &name.value.0, name.place, problems) else {
                continue;
            };
            if interface.source_check != SourceCheck::Off && interface.source_check != check {
                let message = format!("`{}` is in `urpf_loose` and in `urpf_strict`", name.value.0);
                let help = "list it once: the strict check includes the loose one";
                problems.push_help(name.place, message, help);
            }
            interface.source_check = check;
        }
    }
}

/// Returns the interface of a name, or reports it with the nearest known name.
fn find_interface<'a>(
    interfaces: &'a mut [InterfaceConfig],
    name: &str,
    place: SourceRange,
    problems: &mut Problems,
) -> Option<&'a mut InterfaceConfig> {
    let found = interfaces.iter().position(|known| known.name == name);
    if found.is_none() {
        let message = format!("unknown interface `{name}`");
        let help = did_you_mean(name, interfaces.iter().map(|known| known.name.as_str()));
        let help = help.or_else(|| Some("add it to `interfaces` of [router] or of a VPN".into()));
        problems.push_with_help(place, message, help);
    }
    found.map(|number| &mut interfaces[number])
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rsvp::EgressLabel;
    use netstage_wire::rsvp::route::RouteHop;

    const RSVP_WITHOUT_INTERFACE: &str =
        "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n";

    #[test]
    fn a_configuration_is_parsed() {
        let text = "[router]\ninterfaces = [\"eth0\", \"eth1\"]\nmpls = [\"eth1\"]\nroutes = \"fib.txt\"\n\
            urpf_strict = [\"eth2\"]\nurpf_loose = [\"eth1\"]\n[vpn.red]\ninterfaces = [\"eth2\"]\nkernel_table = 10\n[port.eth0]\nrate = \"10 Mbit/s\"\n\
            [port.eth2]\nrate = \"10 Mbit/s\"\nclasses = [{ dscp = [46] }, { dscp = [], priority = 1 }]\n";
        let router = parse("/etc/netstage/router.toml", text).unwrap();
        let interfaces: Vec<(&str, usize, bool)> =
            router.interfaces.iter().map(|one| (one.name.as_str(), one.table, one.mpls)).collect();
        assert_eq!(interfaces, [("eth0", 0, false), ("eth1", 0, true), ("eth2", 1, false)]);
        let checks: Vec<SourceCheck> = router.interfaces.iter().map(|one| one.source_check).collect();
        assert_eq!(checks, [SourceCheck::Off, SourceCheck::Loose, SourceCheck::Strict]);
        let shaping = router.interfaces.iter().map(|one| one.shaping.as_ref());
        let classes: Vec<_> = shaping.map(|one| one.map(|one| (one.rate, one.classes.len()))).collect();
        let rate = BitRate(10_000_000);
        assert_eq!(classes, [Some((rate, 1)), None, Some((rate, 2))]);
        assert_eq!(router.tables[1], RoutingTableConfig { name: "red".into(), kernel: Some(10) });
        assert_eq!(router.routes, Some("/etc/netstage/fib.txt".into()));
        assert_eq!((router.fast_path, router.model), (FastPath::Auto, TunnelModel::Uniform));
        assert!(router.follow_kernel);
        assert_eq!(router.fpm, None);
    }

    #[test]
    fn tunnels_are_parsed() {
        let text = "[router]\ninterfaces = [\"eth0\", \"eth1\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n\
            [rsvp.interface.eth1]\nbandwidth = \"1 Gbit/s\"\n\
            keys = [{ number = 7, file = \"core.key\" }]\n[rsvp.tunnel.west]\nto = \"10.0.0.9\"\n\
            route = [\"10.1.0.2\", \"10.0.0.9 loose\"]\nbandwidth = \"10 Mbit/s\"\nprefixes = [\"10.9.0.0/16\"]\n";
        let router = parse("/etc/netstage/router.toml", text).unwrap();
        let labeled: Vec<(bool, bool)> = router.interfaces.iter().map(|one| (one.mpls, one.rsvp)).collect();
        assert_eq!(labeled, [(false, false), (true, true)]);
        let rsvp = router.rsvp.unwrap();
        let interface = RsvpInterfaceSettings {
            name: "eth1".into(),
            bandwidth: Some(BitRate(1_000_000_000)),
            keys: vec![(7, "/etc/netstage/core.key".into())],
        };
        assert_eq!(rsvp.interfaces, [interface]);
        assert_eq!((rsvp.first_label.number(), rsvp.egress), (524_288, EgressLabel::ImplicitNull));
        let tunnel = &rsvp.tunnels[0];
        let hop = |address: [u8; 4], is_loose| RouteHop::Ipv4 {
            address: address.into(),
            length: 32,
            is_loose,
            flags: 0,
        };
        assert_eq!(tunnel.request.route, [hop([10, 1, 0, 2], false), hop([10, 0, 0, 9], true)]);
        assert_eq!((&*tunnel.request.name, tunnel.request.bandwidth), (&b"west"[..], BitRate(10_000_000)));
        assert_eq!(tunnel.prefixes.len(), 1);
    }

    #[test]
    fn neighbors_are_parsed() {
        let text = "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nneighbors = [\"10.0.0.2\", \"fd00::2\"]\n\
            interval = \"10 ms\"\n";
        let bfd = parse("router.toml", text).unwrap().bfd.unwrap();
        let neighbors = ["10.0.0.2", "fd00::2"].map(|text| text.parse().unwrap()).to_vec();
        let interval = netstage_core::time::Duration::from_millis(10);
        assert_eq!(bfd, BfdSettings { neighbors, bfdd: None, interval, multiplier: 3 });
        let text = "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nbfdd = \"/run/bfdd.sock\"\n";
        let bfd = parse("router.toml", text).unwrap().bfd.unwrap();
        assert_eq!((bfd.neighbors.len(), bfd.bfdd), (0, Some("/run/bfdd.sock".into())));
    }

    #[test]
    fn errors_contain_position_and_remedy() {
        for (text, message) in [
            ("[router]\ninterfaces = []\n", "interfaces"),
            ("[router]\ninterfaces = [\"eth0\", \"eth0\"]\n", "`eth0` is listed twice"),
            ("[router]\ninterfaces = [\"eth0\"]\nmpls = [\"eth1\"]\n", "unknown interface `eth1`"),
            ("[router]\ninterfaces = [\"eth0\"]\nurpf_loose = [\"eth1\"]\n", "unknown interface `eth1`"),
            (
                "[router]\ninterfaces = [\"eth0\"]\nurpf_loose = [\"eth0\"]\nurpf_strict = [\"eth0\"]\n",
                "`eth0` is in `urpf_loose` and in `urpf_strict`",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[vpn.a]\ninterfaces = [\"eth0\"]\n",
                "`eth0` is listed twice",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[vpn.main]\ninterfaces = [\"eth1\"]\n",
                "`main` is reserved",
            ),
            ("[router]\ninterfaces = [\"eth0\"]\nfpm = \"192.0.2.1:2620\"\n", "a loopback address"),
            ("[router]\ninterfaces = [\"eth0\"]\nfast_path = \"of\"\n", "fast_path"),
            (RSVP_WITHOUT_INTERFACE, "[rsvp.interface.NAME]"),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n[rsvp.interface.eth1]\n",
                "unknown interface `eth1`",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[vpn.red]\ninterfaces = [\"eth1\"]\n[rsvp]\n\
                 router_id = \"10.0.0.1\"\n[rsvp.interface.eth1]\n",
                "`eth1` belongs to a VPN",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n[rsvp.interface.eth0]\n\
                 [rsvp.tunnel.a]\nto = \"10.0.0.2\"\nroute = [\"10.1.0.2/24\"]\n",
                "expected an IPv4 address such as",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n[rsvp.interface.eth0]\n\
                 [rsvp.tunnel.a]\nto = \"10.0.0.1\"\n",
                "the tunnel ends at this router",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n[rsvp.interface.eth0]\n\
                 [rsvp.tunnel.a]\nto = \"10.0.0.2\"\nprefixes = [\"10.9.0.0/16\"]\n\
                 [rsvp.tunnel.b]\nto = \"10.0.0.2\"\nprefixes = [\"10.9.0.0/16\"]\n",
                "10.9.0.0/16 belongs to tunnel `a`",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[rsvp]\nrouter_id = \"10.0.0.1\"\n[rsvp.interface.eth0]\n\
                 [rsvp.tunnel.a]\nto = \"10.0.0.2\"\nprotects = \"10.1.0.2\"\n",
                "give it a `route` around the link",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nneighbors = [\"10.0.0.2\", \"10.0.0.2\"]\n",
                "10.0.0.2 is listed twice",
            ),
            ("[router]\ninterfaces = [\"eth0\"]\n[bfd]\n", "list `neighbors`, or name the socket"),
            (
                "[router]\ninterfaces = [\"eth0\"]\nmpls = [\"eth0\"]\n[alternates]\nospfd = \"/run/o\"\n",
                "set `ldpd` to the command-line socket",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nneighbors = [\"10.0.0.2\"]\nbfdd = \"/run/b\"\n",
                "remove `bfdd` or `neighbors`",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nneighbors = [\"fe80::2\"]\n",
                "list an address that is not link-local",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[bfd]\nneighbors = [\"10.0.0.2\"]\n\
                 interval = \"100 us\"\n",
                "from 1 ms to 60 s",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[port.eth1]\nrate = \"1 Mbit/s\"\n",
                "unknown interface `eth1`",
            ),
        ] {
            let errors = parse("router.toml", text).unwrap_err().to_string();
            assert!(errors.contains(message) && errors.contains("router.toml:"), "{errors}");
        }
    }
}
