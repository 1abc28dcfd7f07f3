//! Back-ends of emulated links: netstage's emulator, or the kernel's netem for the links that it emulates exactly.

use crate::topology::spec::{LinkSpec, Spec};
use netstage_core::link::LinkDirectionConfig;
use netstage_emulator::netem::{self, NetemStages, READ_INTERVAL};
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::plan::{Hop, Plan};

/// Back-end of the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// netstage's emulator.
    #[default]
    Own,
    /// The kernel's netem; a run with a link that netem cannot emulate is refused.
    Netem,
    /// netem for the links that it emulates exactly, netstage's emulator for the others.
    Mixed,
}

/// Assigns links to the kernel. Returns remarks for the record.
pub fn assign(backend: Backend, plan: &Plan, spec: &mut Spec) -> Result<Vec<String>, RunFailure> {
    if backend == Backend::Own {
        return Ok(Vec::new());
    }
    let mut refused = Vec::new();
    for link in &mut spec.links {
        match by_netem(plan, link) {
            Ok(directions) => link.netem = Some(directions),
            Err(differences) => refused.push(format!("link.{}: {}", link.name, differences.join(", "))),
        }
    }
    if backend == Backend::Netem && !refused.is_empty() {
        return Err(RunFailure::Unsupported(format!(
            "netem cannot emulate every link of the scenario: {}; use --emulator mixed, which leaves these links to \
             netstage, or --emulator own",
            refused.join("; ")
        )));
    }
    let by_kernel: Vec<String> = spec
        .links
        .iter()
        .filter(|link| link.netem.is_some())
        .map(|link| format!("link.{}", link.name))
        .collect();
    let mut remarks = Vec::new();
    if !by_kernel.is_empty() {
        remarks.push(format!(
            "the kernel's netem emulated {}: losses, jitter and duplicates do not follow the seed, queue lengths are \
             sampled every {} ms, and neither the lateness nor the TCP flows of lost packets are known",
            by_kernel.join(", "),
            READ_INTERVAL.0 / 1_000_000
        ));
    }
    if !refused.is_empty() {
        remarks.push(format!("netstage emulated the links that netem cannot: {}", refused.join("; ")));
    }
    Ok(remarks)
}

/// Returns the netems of both directions of a link, or the properties that netem lacks.
fn by_netem(plan: &Plan, link: &LinkSpec) -> Result<[NetemStages; 2], Vec<&'static str>> {
    let mut differences = Vec::new();
    let mut stages = |config: &LinkDirectionConfig| match netem::stages(config) {
        Ok(stages) => stages,
        Err(found) => {
            found.into_iter().for_each(|difference| {
                if !differences.contains(&difference) {
                    differences.push(difference);
                }
            });
            NetemStages::default()
        }
    };
    let both = [stages(&link.directions[0]), stages(&link.directions[1])];
    if link.is_tun {
        differences.push("a link of TUN interfaces");
    }
    let is_this_link = |hop: &Hop| hop.link == link.index;
    if plan.vpns.iter().any(|vpn| vpn.path.last().is_some_and(is_this_link)) {
        differences.push("counting the delivered traffic of a VPN");
    }
    if plan
        .flows
        .iter()
        .any(|flow| flow.background && flow.path.iter().chain(&flow.reverse).any(is_this_link))
    {
        differences.push("separate counts of background traffic");
    }
    if differences.is_empty() { Ok(both) } else { Err(differences) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::layout::AddressLayout;
    use crate::topology::plan_of;

    const SCENARIO: &str = r#"
        [scenario]
        title = "t"
        duration = "1 s"
        [node.a]
        [node.b]
        [node.r]
        kind = "router"
        [defaults.link]
        rate = "10 Mbit/s"
        buffer = "20 packets"
        [link.plain]
        ends = ["a", "r"]
        [link.other]
        ends = ["r", "b"]
        [flow.f]
        from = "a"
        to = "b"
    "#;

    fn assigned(backend: Backend, text: &str) -> (Result<Vec<String>, RunFailure>, Vec<bool>) {
        let plan = &plan_of(text);
        let mut spec = Spec::new(plan, &AddressLayout::new(plan).unwrap(), &Default::default());
        let remarks = assign(backend, plan, &mut spec);
        (remarks, spec.links.iter().map(|link| link.netem.is_some()).collect())
    }

    #[test]
    fn supported_links_are_assigned_to_netem_on_request() {
        assert_eq!(assigned(Backend::Own, SCENARIO), (Ok(vec![]), vec![false, false]));
        let (remarks, by_kernel) = assigned(Backend::Netem, SCENARIO);
        assert_eq!(by_kernel, [true, true]);
        assert!(remarks.unwrap()[0].starts_with("the kernel's netem emulated link.other, link.plain: "));
    }

    #[test]
    fn an_unsupported_link_is_refused_or_emulated_by_netstage() {
        let text = SCENARIO.replace("[link.other]", "[link.other]\nber = 1e-6");
        let (refused, _) = assigned(Backend::Netem, &text);
        let Err(RunFailure::Unsupported(reason)) = refused else { panic!("{refused:?}") };
        assert!(
            reason.contains("link.other: a bit error rate") && !reason.contains("link.plain"),
            "{reason}"
        );
        let (remarks, by_kernel) = assigned(Backend::Mixed, &text);
        let remarks = remarks.unwrap();
        assert_eq!(by_kernel, [false, true]);
        assert!(
            remarks[1]
                .contains("netstage emulated the links that netem cannot: link.other: a bit error rate")
        );
    }

    #[test]
    fn a_link_with_background_traffic_is_not_assigned_to_netem() {
        let (_, by_kernel) = assigned(Backend::Mixed, &format!("{SCENARIO}\nbackground = true"));
        assert_eq!(by_kernel, [false, false]);
    }
}
