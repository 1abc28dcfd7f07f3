//! Which links the kernel's netem works in place of netstage's emulator: those it can be
//! without a difference, where a run asks for it.

use crate::topology::spec::{LinkSpec, Spec};
use netstage_core::link::Config;
use netstage_emulator::netem::{self, STEP, Stages};
use netstage_scenario::outcome::Stopped;
use netstage_scenario::plan::{Hop, Plan};

/// Who works the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// netstage's emulator.
    #[default]
    Own,
    /// The kernel's netem, or the run is refused.
    Netem,
    /// netem where it does the same, netstage's emulator elsewhere.
    Mixed,
}

/// Hands links to the kernel; what a reader of the record must know of it.
pub fn assign(backend: Backend, plan: &Plan, spec: &mut Spec) -> Result<Vec<String>, Stopped> {
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
        return Err(Stopped::Unsupported(format!(
            "netem cannot be every link as the scenario has it: {}. Run it with --emulator mixed, which leaves these to \
             netstage, or with --emulator own",
            refused.join("; ")
        )));
    }
    let by_kernel: Vec<String> = spec
        .links
        .iter()
        .filter(|link| link.netem.is_some())
        .map(|link| format!("link.{}", link.name))
        .collect();
    let mut told = Vec::new();
    if !by_kernel.is_empty() {
        told.push(format!(
            "the kernel's netem worked {}: its losses, jitter and duplicates do not follow the seed, queue lengths are \
             those read every {} ms, how late it was is not known, and of TCP's packets it does not tell whose it lost",
            by_kernel.join(", "),
            STEP.0 / 1_000_000
        ));
    }
    if !refused.is_empty() {
        told.push(format!("netstage worked what netem cannot be: {}", refused.join("; ")));
    }
    Ok(told)
}

/// The netems of both directions of a link, or all that they would do otherwise.
fn by_netem(plan: &Plan, link: &LinkSpec) -> Result<[Stages; 2], Vec<&'static str>> {
    let mut differences = Vec::new();
    let mut stages = |config: &Config| match netem::stages(config) {
        Ok(stages) => stages,
        Err(found) => {
            found.into_iter().for_each(|what| {
                if !differences.contains(&what) {
                    differences.push(what);
                }
            });
            Stages::default()
        }
    };
    let both = [stages(&link.directions[0]), stages(&link.directions[1])];
    if link.is_tun {
        differences.push("a link of TUN interfaces");
    }
    let here = |hop: &Hop| hop.link == link.index;
    if plan.vpns.iter().any(|vpn| vpn.path.last().is_some_and(here)) {
        differences.push("counting a VPN's traffic where it leaves");
    }
    if plan.flows.iter().any(|flow| flow.background && flow.path.iter().chain(&flow.reverse).any(here)) {
        differences.push("counting background traffic apart");
    }
    if differences.is_empty() { Ok(both) } else { Err(differences) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::layout::Layout;
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

    fn assigned(backend: Backend, text: &str) -> (Result<Vec<String>, Stopped>, Vec<bool>) {
        let plan = &plan_of(text);
        let mut spec = Spec::new(plan, &Layout::new(plan).unwrap(), &Default::default());
        let told = assign(backend, plan, &mut spec);
        (told, spec.links.iter().map(|link| link.netem.is_some()).collect())
    }

    #[test]
    fn links_netem_can_be_are_handed_to_it_when_asked() {
        assert_eq!(assigned(Backend::Own, SCENARIO), (Ok(vec![]), vec![false, false]));
        let (told, by_kernel) = assigned(Backend::Netem, SCENARIO);
        assert_eq!(by_kernel, [true, true]);
        assert!(told.unwrap()[0].starts_with("the kernel's netem worked link.other, link.plain: "));
    }

    #[test]
    fn what_it_cannot_be_is_refused_by_name_or_stays() {
        let text = SCENARIO.replace("[link.other]", "[link.other]\nber = 1e-6");
        let (refused, _) = assigned(Backend::Netem, &text);
        let Err(Stopped::Unsupported(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("link.other: a bit error rate") && !why.contains("link.plain"), "{why}");
        let (told, by_kernel) = assigned(Backend::Mixed, &text);
        let told = told.unwrap();
        assert_eq!(by_kernel, [false, true]);
        assert!(told[1].contains("netstage worked what netem cannot be: link.other: a bit error rate"));
    }

    #[test]
    fn background_that_is_counted_apart_keeps_a_link_from_netem() {
        let (_, by_kernel) = assigned(Backend::Mixed, &format!("{SCENARIO}\nbackground = true"));
        assert_eq!(by_kernel, [false, false]);
    }
}
