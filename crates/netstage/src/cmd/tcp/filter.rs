//! Options that select TCP connections, shared by several commands.

use crate::exit::Failure;
use netstage_host::netns::Namespace;
use netstage_tcp_watch::filter::{self, AddressPrefix, Filter, ProcessFilter};
use std::collections::BTreeSet;
use std::io;

/// Options that select connections. Values of one option are alternatives; different options must all match.
#[derive(clap::Args)]
pub struct Options {
    /// Connections of a process, by PID or name
    #[arg(long, visible_alias = "pid", value_name = "PID|NAME")]
    process: Vec<ProcessFilter>,
    /// Connections with this local or remote port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Connections with this local or remote address or network
    #[arg(long, visible_alias = "to", value_name = "ADDRESS[/BITS]")]
    address: Vec<AddressPrefix>,
    /// Connections in a network namespace, by name, PID of a process in it, or path
    #[arg(long, value_name = "NAME|PID|PATH")]
    namespace: Vec<String>,
    /// Connections of a cgroup and its descendants
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Connections of a container, by a prefix of its ID
    #[arg(long, value_name = "ID")]
    container: Vec<String>,
}

impl Options {
    /// Reports whether the options select every connection.
    pub fn is_empty(&self) -> bool {
        let Options { process, port, address, namespace, cgroup, container } = self;
        let texts = [namespace, cgroup, container];
        process.is_empty()
            && port.is_empty()
            && address.is_empty()
            && texts.iter().all(|texts| texts.is_empty())
    }

    /// Returns the network namespaces to search: those given, or else the caller's and those of the selected
    /// processes.
    pub fn namespaces(&self, filter: &Filter) -> Result<Vec<Namespace>, Failure> {
        let failed = |error: io::Error| Failure::run(format!("cannot open a network namespace: {error}"));
        if !self.namespace.is_empty() {
            let open = |text: &String| Namespace::at(&filter::namespace_path(text));
            return self.namespace.iter().map(open).collect::<Result<_, _>>().map_err(failed);
        }
        let own = Namespace::of_this_thread().map_err(failed)?;
        let number = |namespace: &Namespace| namespace.number().ok();
        let mut seen = BTreeSet::from([number(&own)]);
        let others =
            filter.process_numbers().into_iter().filter_map(|process| Namespace::of_process(process).ok());
        let others: Vec<Namespace> = others.filter(|namespace| seen.insert(number(namespace))).collect();
        Ok(std::iter::once(own).chain(others).collect())
    }

    /// Returns the options as a filter.
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
