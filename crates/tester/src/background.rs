//! Background routes: a table from a file, such as that of a route collector, announced in addition to the
//! tested networks. The router under test then looks these up in a table of realistic size and mix.

use super::port::OpenPort;
use netstage_host::startup_error::StartupError;
use netstage_routing::bgp::path::{AsPath, PathAttributes};
use netstage_routing::bgp::table::{BgpTable, BgpTableError, read_mrt, read_text};
use netstage_scenario::tester::{Tester, TrafficDirection};
use std::net::IpAddr;

/// Maximum number of routes read from a file: several times the Internet's table.
const MAX_ROUTES: usize = 8_000_000;

/// Routes of a file as announced by a port.
#[derive(Debug)]
pub struct BackgroundRoutes {
    /// Routes, with the port as next hop.
    pub table: BgpTable,
    /// Number of routes left out, because they would attract packets to the tested networks, have another
    /// address family than the port, or have attributes that fill a message.
    pub left_out: usize,
}

/// Reads the file named by the configuration, if any, for the first receiving port.
pub fn read_background(
    tester: &Tester,
    ports: &[OpenPort],
) -> Result<Option<BackgroundRoutes>, StartupError> {
    let Some(file) = &tester.bgp.additional_routes else { return Ok(None) };
    let invalid = |error: String| {
        let remedy = "name an MRT file (RFC 6396, gzip accepted), or a text file with a prefix and a next hop on each line";
        StartupError::new(format!("{}: {error}", file.display()), remedy)
    };
    let bytes = std::fs::read(file).map_err(|error| invalid(error.to_string()))?;
    let mut read = BgpTable::new();
    match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => {
            read_text(text, &AsPath::default(), &mut read).map_err(|error| invalid(error.to_string()))?;
        }
        _ => _ = read_mrt(&bytes[..], MAX_ROUTES, &mut read).map_err(|error| invalid(error.to_string()))?,
    }
    let background = announced(&read, tester, ports[tester.directions[0].to[0]].settings.address.0);
    if background.table.is_empty() {
        return Err(invalid("the file has no route that can be announced".into()));
    }
    Ok(Some(background))
}

fn announced(read: &BgpTable, tester: &Tester, next_hop: IpAddr) -> BackgroundRoutes {
    let mut background = BackgroundRoutes { table: BgpTable::new(), left_out: 0 };
    for (nlri, path) in read.iter() {
        let (address, length) = (nlri.prefix.address(), nlri.prefix.length());
        let is_tested =
            tester.directions.iter().any(|direction| overlaps(direction, tester.networks, address, length));
        let mut add = || {
            let group = background.table.group(nlri.family, PathAttributes { next_hop, ..path.clone() })?;
            background.table.push(group, &nlri);
            Ok::<_, BgpTableError>(())
        };
        if is_tested || nlri.family.is_labeled() || add().is_err() {
            background.left_out += 1;
        }
    }
    background
}

/// Returns whether a prefix is one of a direction's networks, or part of one.
fn overlaps(direction: &TrafficDirection, networks: u32, address: IpAddr, length: u8) -> bool {
    let number = match (direction.first_network, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            u32::from(address).checked_sub(u32::from(first)).map(|above| u128::from(above >> 8))
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            u128::from(address).checked_sub(u128::from(first)).map(|above| above >> 80)
        }
        _ => None,
    };
    length >= direction.network(0).1 && number.is_some_and(|number| number < u128::from(networks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_scenario::tester::parse;

    #[test]
    fn background_routes_have_the_port_as_next_hop_and_exclude_tested_networks() {
        let tester = parse(
            "tester.toml",
            "[tester]\nfrom = [\"a\"]\nto = [\"b\"]\nsizes = [\"46 B\"]\noperations = [\"ip\"]\n\
             [port.a]\ninterface = \"a\"\naddress = \"192.0.2.2/30\"\nrouter = \"192.0.2.1\"\n\
             [port.b]\ninterface = \"b\"\naddress = \"192.0.2.6/30\"\nrouter = \"192.0.2.5\"\n\
             [routes]\ncount = 256\nby = \"bgp\"\n[bgp]\nadditional_routes = \"table.txt\"\n",
        )
        .unwrap();
        let mut read = BgpTable::new();
        let text = "11.0.0.0/8 10.0.0.1\n11.0.1.0/24 10.0.0.1\n11.0.255.128/25 10.0.0.2\n11.1.0.0/24 10.0.0.2\n\
                    2001:db8::/32 2001:db8::1\n10.0.0.0/8 10.0.0.1 77\n";
        read_text(text, &AsPath::sequence(&[65_010]), &mut read).unwrap();
        let background = announced(&read, &tester, "192.0.2.6".parse().unwrap());
        let routes: Vec<String> = background
            .table
            .iter()
            .map(|(nlri, path)| format!("{} {} {}", nlri.prefix, path.next_hop, path.as_path.length()))
            .collect();
        assert_eq!(routes, ["11.0.0.0/8 192.0.2.6 1", "11.1.0.0/24 192.0.2.6 1"]);
        assert_eq!(background.left_out, 4);
    }
}
