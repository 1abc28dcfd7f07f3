//! The configuration of a router: read and checked as a scenario is, with the same names, positions and
//! advice.

mod file;

use crate::error::{Errors, Place, Problems, did_you_mean};
use crate::read::read_text;
use crate::scalar::InterfaceName;
use crate::table::{At, Decode};
use crate::tree::parse_document;
use netstage_core::forward::Model;
use std::path::{Path, PathBuf};

/// A router, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its tables: the first is of all interfaces no VPN has.
    pub tables: Vec<Table>,
    /// The control socket.
    pub control: PathBuf,
    /// A file of routes and labels.
    pub routes: Option<PathBuf>,
    /// Forward by the kernel's routes too.
    pub follow_kernel: bool,
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
}

/// One of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its table, an index.
    pub table: usize,
    /// Labels are taken from there.
    pub mpls: bool,
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

/// The kernel's main table.
const MAIN: u32 = 254;

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Router, Errors> {
    parse(&path.display().to_string(), &read_text(path, "configuration")?)
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<Router, Errors> {
    let mut problems = Problems::default();
    problems.add_source(name, text);
    let root = parse_document(0, &mut problems);
    if problems.is_empty()
        && let Some(file) = file::File::decode(&root, &mut problems)
    {
        let mut router = built(&file, &mut problems);
        if problems.is_empty() {
            let folder = Path::new(name).parent().unwrap_or(Path::new(""));
            router.routes = router.routes.map(|file| folder.join(file));
            return Ok(router);
        }
    }
    if problems.is_empty() {
        problems.push(Place::new(0, 0..0), "the configuration cannot be used");
    }
    Err(problems.into_errors())
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
        interfaces.push(Interface { name: name.value.0.clone(), table, mpls: false });
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
        match interfaces.iter_mut().find(|known| known.name == name.value.0) {
            Some(interface) => interface.mpls = true,
            None => {
                let message = format!("`{}` is no interface of the router", name.value.0);
                let help = did_you_mean(&name.value.0, interfaces.iter().map(|known| known.name.as_str()));
                let help = help.or_else(|| Some("name it under `interfaces`, or of a VPN, too".into()));
                problems.push_with_help(name.place, message, help);
            }
        }
    }
    Router {
        interfaces,
        tables,
        control: head.control.0.clone().into(),
        routes: head.routes.as_ref().map(|path| path.0.clone().into()),
        follow_kernel: head.follow_kernel,
        fast_path: head.fast_path,
        model: head.model,
        v4_rows: head.v4_rows.0 as usize,
        v6_rows: head.v6_rows.0 as usize,
        next_hops: head.next_hops.0 as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_router() {
        let text = "[router]\ninterfaces = [\"eth0\", \"eth1\"]\nmpls = [\"eth1\"]\nroutes = \"fib.txt\"\n\
            [vpn.red]\ninterfaces = [\"eth2\"]\nkernel_table = 10\n";
        let router = parse("/etc/netstage/router.toml", text).unwrap();
        let interface = |name: &str, table, mpls| Interface { name: name.into(), table, mpls };
        let expected = [interface("eth0", 0, false), interface("eth1", 0, true), interface("eth2", 1, false)];
        assert_eq!(router.interfaces, expected);
        assert_eq!(router.tables[1], Table { name: "red".into(), kernel: Some(10) });
        assert_eq!(router.routes, Some("/etc/netstage/fib.txt".into()));
        assert_eq!((router.fast_path, router.model), (FastPath::Auto, Model::Uniform));
        assert!(router.follow_kernel);
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
            ("[router]\ninterfaces = [\"eth0\"]\nfast_path = \"of\"\n", "fast_path"),
        ] {
            let errors = parse("router.toml", text).unwrap_err().to_string();
            assert!(errors.contains(message) && errors.contains("router.toml:"), "{errors}");
        }
    }
}
