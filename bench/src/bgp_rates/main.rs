//! Rates of encoding and decoding BGP routes, in memory and through a router.
//!
//! `bgp_rates` prints the rates in memory. `bgp_rates through INJECTORS SINK ROUTER COUNT FAMILY` opens sessions
//! from local addresses (AS 65001 and 65002) to a router, announces COUNT routes on one and waits for them on the
//! other, then withdraws them; it prints one line of JSON. Several injectors, separated by commas (further AS
//! numbers: from 65011 on), announce the same routes, and one more each. `bgp_rates direct INJECTOR SINK COUNT
//! FAMILY` uses no router.

mod memory;
mod through;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => memory::print_rates(),
        ["through", injectors, sink, router, count, family] => {
            let injectors: Vec<_> = injectors.split(',').map(|injector| (injector, router)).collect();
            through::run(&injectors, (sink, router), count, family)
        }
        ["direct", injector, sink, count, family] => {
            through::run(&[(injector, sink)], (sink, injector), count, family)
        }
        _ => {
            eprintln!(
                "usage: bgp_rates [through INJECTORS SINK ROUTER COUNT FAMILY | direct INJECTOR SINK COUNT FAMILY]"
            );
            eprintln!("FAMILY: ipv4, ipv6, labeled or vpnv4");
            std::process::exit(2);
        }
    }
}
