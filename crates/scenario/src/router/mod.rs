//! The configuration of a router: read and checked as a scenario is, with the same names, positions and
//! advice.

mod file;

use crate::error::{Errors, Place, Problems, did_you_mean};
use crate::file::control::Class;
use crate::read::{configuration, read_text};
use crate::scalar::InterfaceName;
use crate::table::{At, Decode};
use netstage_core::fair;
use netstage_core::forward::Model;
use netstage_core::quantity::BitRate;
use netstage_core::queue::TrafficClass;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A router, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its tables: the first is of all interfaces no VPN has.
    pub tables: Vec<Table>,
    /// The control socket.
    pub control: PathBuf,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// A file of routes and labels.
    pub routes: Option<PathBuf>,
    /// Forward by the kernel's routes too.
    pub follow_kernel: bool,
    /// Where a forwarding plane manager is heard.
    pub fpm: Option<SocketAddr>,
    /// Where packets are decided.
    pub fast_path: FastPath,
    /// How labels belong to what is beneath.
    pub model: Model,
    /// Rows of 256 routes below the first, of IPv4 in each table.
    pub v4_rows: usize,
    /// Of IPv6.
    pub v6_rows: usize,
    /// Next hops, and groups of them.
    pub next_hops: usize,
    /// What packets are counted by.
    pub count: Counting,
    /// What the program in the kernel does when the router is killed.
    pub when_killed: WhenKilled,
    /// Where it is pinned then.
    pub pins: PathBuf,
}

/// One of its interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its table, an index.
    pub table: usize,
    /// Labels are taken from there.
    pub mpls: bool,
    /// How its frames wait, if they do.
    pub shaping: Option<Shaping>,
}

/// How frames wait for an interface's line.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaping {
    /// The line's rate, of frames with their Ethernet header.
    pub rate: BitRate,
    /// Classes, one at least.
    pub classes: Vec<TrafficClass>,
}

/// One of its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The VPN's name, or `main`.
    pub name: String,
    /// The kernel's number of it.
    pub kernel: Option<u32>,
}

/// Where packets are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// In the kernel where that works.
    Auto,
    /// In the kernel.
    Xdp,
    /// By the program itself.
    Off,
}

/// What packets that took a route are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Their next hops.
    NextHop,
    /// Their prefix.
    Prefix,
}

/// What the program in the kernel does when the router is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenKilled {
    /// It goes with it.
    Stop,
    /// It forwards on.
    Forward,
}

/// The kernel's main table.
const MAIN: u32 = 254;

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Router, Errors> {
    parse(&path.display().to_string(), &read_text(path, "configuration")?)
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<Router, Errors> {
    let mut router = configuration(name, text, |file, problems| Some(built(file, problems)))?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    router.routes = router.routes.map(|file| folder.join(file));
    Ok(router)
}

/// The tables of a configuration, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&file::File::kind())
}

fn built(file: &file::File, problems: &mut Problems) -> Router {
    let head = &file.router;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut add = |name: &At<InterfaceName>, table: usize, problems: &mut Problems| {
        if interfaces.iter().any(|known| known.name == name.value.0) {
            let message = format!("`{}` is named twice", name.value.0);
            problems.push_help(name.place, message, "an interface has one table: name it once");
            return;
        }
        interfaces.push(Interface { name: name.value.0.clone(), table, mpls: false, shaping: None });
    };
    let mut tables = vec![Table { name: "main".into(), kernel: Some(MAIN) }];
    head.interfaces.0.iter().for_each(|name| add(name, 0, problems));
    for member in &file.vpn.0 {
        let Some(vpn) = &member.value else { continue };
        if member.name == "main" {
            problems.push_help(member.place, "`main` is the table of no VPN", "give the VPN another name");
        }
        vpn.interfaces.0.iter().for_each(|name| add(name, tables.len(), problems));
        tables
            .push(Table { name: member.name.clone(), kernel: vpn.kernel_table.map(|table| table.0 as u32) });
    }
    for name in &head.mpls.0 {
        if let Some(interface) = known(&mut interfaces, &name.value.0, name.place, problems) {
            interface.mpls = true;
        }
    }
    for member in &file.port.0 {
        let Some(port) = &member.value else { continue };
        if let Some(interface) = known(&mut interfaces, &member.name, member.place, problems) {
            let mut classes: Vec<TrafficClass> = port.classes.0.iter().map(Class::checked).collect();
            if classes.is_empty() {
                let packets = fair::Config::default().queue;
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
    Router {
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

/// An interface by its name, or a problem that names the nearest.
fn known<'a>(
    interfaces: &'a mut [Interface],
    name: &str,
    place: Place,
    problems: &mut Problems,
) -> Option<&'a mut Interface> {
    let found = interfaces.iter().position(|known| known.name == name);
    if found.is_none() {
        let message = format!("`{name}` is no interface of the router");
        let help = did_you_mean(name, interfaces.iter().map(|known| known.name.as_str()));
        let help = help.or_else(|| Some("name it under `interfaces`, or of a VPN, too".into()));
        problems.push_with_help(place, message, help);
    }
    found.map(|number| &mut interfaces[number])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_router() {
        let text = "[router]\ninterfaces = [\"eth0\", \"eth1\"]\nmpls = [\"eth1\"]\nroutes = \"fib.txt\"\n\
            [vpn.red]\ninterfaces = [\"eth2\"]\nkernel_table = 10\n[port.eth0]\nrate = \"10 Mbit/s\"\n\
            [port.eth2]\nrate = \"10 Mbit/s\"\nclasses = [{ dscp = [46] }, { dscp = [], priority = 1 }]\n";
        let router = parse("/etc/netstage/router.toml", text).unwrap();
        let interfaces: Vec<(&str, usize, bool)> =
            router.interfaces.iter().map(|one| (one.name.as_str(), one.table, one.mpls)).collect();
        assert_eq!(interfaces, [("eth0", 0, false), ("eth1", 0, true), ("eth2", 1, false)]);
        let shaping = router.interfaces.iter().map(|one| one.shaping.as_ref());
        let classes: Vec<_> = shaping.map(|one| one.map(|one| (one.rate, one.classes.len()))).collect();
        let rate = BitRate(10_000_000);
        assert_eq!(classes, [Some((rate, 1)), None, Some((rate, 2))]);
        assert_eq!(router.tables[1], Table { name: "red".into(), kernel: Some(10) });
        assert_eq!(router.routes, Some("/etc/netstage/fib.txt".into()));
        assert_eq!((router.fast_path, router.model), (FastPath::Auto, Model::Uniform));
        assert!(router.follow_kernel);
        assert_eq!(router.fpm, None);
    }

    #[test]
    fn mistakes_are_told_with_their_place_and_remedy() {
        for (text, message) in [
            ("[router]\ninterfaces = []\n", "interfaces"),
            ("[router]\ninterfaces = [\"eth0\", \"eth0\"]\n", "`eth0` is named twice"),
            (
                "[router]\ninterfaces = [\"eth0\"]\nmpls = [\"eth1\"]\n",
                "`eth1` is no interface of the router",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[vpn.a]\ninterfaces = [\"eth0\"]\n",
                "`eth0` is named twice",
            ),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[vpn.main]\ninterfaces = [\"eth1\"]\n",
                "`main` is the table of no VPN",
            ),
            ("[router]\ninterfaces = [\"eth0\"]\nfpm = \"192.0.2.1:2620\"\n", "a loopback address"),
            ("[router]\ninterfaces = [\"eth0\"]\nfast_path = \"of\"\n", "fast_path"),
            (
                "[router]\ninterfaces = [\"eth0\"]\n[port.eth1]\nrate = \"1 Mbit/s\"\n",
                "`eth1` is no interface of the router",
            ),
        ] {
            let errors = parse("router.toml", text).unwrap_err().to_string();
            assert!(errors.contains(message) && errors.contains("router.toml:"), "{errors}");
        }
    }
}
