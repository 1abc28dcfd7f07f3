//! A table from a file, such as that of a route collector, told beside the networks that packets go to: the
//! router under test then finds these in a table as large and as mixed as a real one.

use super::port::Port;
use netstage_host::obstacle::Obstacle;
use netstage_routing::bgp::path::{AsPath, Path};
use netstage_routing::bgp::table::{Refused, Table, read_mrt, read_text};
use netstage_scenario::tester::{Tester, Way};
use std::net::IpAddr;

/// As many as are read of a file: several times what the Internet has.
const MOST: usize = 8_000_000;

/// The routes of a file as a port tells them.
#[derive(Debug)]
pub struct Beside {
    /// With the port as next hop.
    pub table: Table,
    /// How many are left out, since they would take packets away from the networks that are tested, or are of
    /// another family than the port, or have attributes that fill a message.
    pub left_out: usize,
}

/// Reads the file of a configuration, if it names one, for the first port that receives.
pub fn read(tester: &Tester, ports: &[Port]) -> Result<Option<Beside>, Obstacle> {
    let Some(file) = &tester.bgp.beside else { return Ok(None) };
    let refused = |error: String| {
        let remedy = "name an MRT file (RFC 6396; gzip is read too), or a text with a prefix and a next hop on each line";
        Obstacle::new(format!("{}: {error}", file.display()), remedy)
    };
    let bytes = std::fs::read(file).map_err(|error| refused(error.to_string()))?;
    let mut read = Table::new();
    match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => {
            read_text(text, &AsPath::default(), &mut read).map_err(|error| refused(error.to_string()))?;
        }
        _ => _ = read_mrt(&bytes[..], MOST, &mut read).map_err(|error| refused(error.to_string()))?,
    }
    let beside = told(&read, tester, ports[tester.ways[0].to[0]].settings.address.0);
    if beside.table.is_empty() {
        return Err(refused("there is no route in it that can be told".into()));
    }
    Ok(Some(beside))
}

fn told(read: &Table, tester: &Tester, next_hop: IpAddr) -> Beside {
    let mut beside = Beside { table: Table::new(), left_out: 0 };
    for (nlri, path) in read.iter() {
        let (address, length) = (nlri.prefix.address(), nlri.prefix.length());
        let is_tested = tester.ways.iter().any(|way| holds(way, tester.networks, address, length));
        let mut tell = || {
            let group = beside.table.group(nlri.family, Path { next_hop, ..path.clone() })?;
            beside.table.push(group, &nlri);
            Ok::<_, Refused>(())
        };
        if is_tested || nlri.family.is_labelled() || tell().is_err() {
            beside.left_out += 1;
        }
    }
    beside
}

/// Whether it is one of a way's networks, or a part of one.
fn holds(way: &Way, networks: u32, address: IpAddr, length: u8) -> bool {
    let number = match (way.first, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            u32::from(address).checked_sub(u32::from(first)).map(|above| u128::from(above >> 8))
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            u128::from(address).checked_sub(u128::from(first)).map(|above| above >> 80)
        }
        _ => None,
    };
    length >= way.network(0).1 && number.is_some_and(|number| number < u128::from(networks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_scenario::tester::parse;

    #[test]
    fn routes_beside_have_the_port_as_next_hop_and_leave_tested_networks_alone() {
        let tester = parse(
            "tester.toml",
            "[tester]\nfrom = [\"a\"]\nto = [\"b\"]\nsizes = [\"46 B\"]\noperations = [\"ip\"]\n\
             [port.a]\ninterface = \"a\"\naddress = \"192.0.2.2/30\"\nrouter = \"192.0.2.1\"\n\
             [port.b]\ninterface = \"b\"\naddress = \"192.0.2.6/30\"\nrouter = \"192.0.2.5\"\n\
             [routes]\ncount = 256\nby = \"bgp\"\n[bgp]\nbeside = \"table.txt\"\n",
        )
        .unwrap();
        let mut read = Table::new();
        let text = "11.0.0.0/8 10.0.0.1\n11.0.1.0/24 10.0.0.1\n11.0.255.128/25 10.0.0.2\n11.1.0.0/24 10.0.0.2\n\
                    2001:db8::/32 2001:db8::1\n10.0.0.0/8 10.0.0.1 77\n";
        read_text(text, &AsPath::sequence(&[65_010]), &mut read).unwrap();
        let beside = told(&read, &tester, "192.0.2.6".parse().unwrap());
        let found: Vec<String> = beside
            .table
            .iter()
            .map(|(nlri, path)| format!("{} {} {}", nlri.prefix, path.next_hop, path.as_path.length()))
            .collect();
        assert_eq!(found, ["11.0.0.0/8 192.0.2.6 1", "11.1.0.0/24 192.0.2.6 1"]);
        assert_eq!(beside.left_out, 4);
    }
}
