//! Which connections: options that several commands have.

use crate::exit::Failure;
use netstage_live::tcpmon::filter::{self, Filter, Network, Process};

/// Options. Several of one kind widen the choice, those of different kinds narrow it.
#[derive(clap::Args)]
pub struct Options {
    /// Connections of a process, by its number or name
    #[arg(long, value_name = "PID|NAME")]
    process: Vec<Process>,
    /// Connections with this local or remote port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Connections whose local or remote address is this, or in this network
    #[arg(long, value_name = "ADDRESS[/BITS]")]
    address: Vec<Network>,
    /// Connections in a network namespace: its name, the number of a process in it, or a path
    #[arg(long, value_name = "NAME|PID|PATH")]
    namespace: Vec<String>,
    /// Connections of a cgroup and those below it
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Connections of a container, by the first characters of its id
    #[arg(long, value_name = "ID")]
    container: Vec<String>,
}

impl Options {
    /// The filter they are.
    pub fn filter(&self) -> Result<Filter, Failure> {
        let all = |given: &[String], find: fn(&str) -> Result<_, String>| {
            given.iter().map(|text| find(text)).collect::<Result<Vec<_>, _>>().map_err(Failure::run)
        };
        let mut cgroups = all(&self.cgroup, filter::cgroup)?;
        cgroups.extend(all(&self.container, filter::container)?);
        let namespaces = self.namespace.iter().map(|text| filter::namespace(text));
        Ok(Filter {
            processes: self.process.clone(),
            ports: self.port.clone(),
            addresses: self.address.clone(),
            namespaces: namespaces.collect::<Result<_, _>>().map_err(Failure::run)?,
            cgroups,
        })
    }
}
