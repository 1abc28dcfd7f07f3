//! Losses of flows of datagrams with real packets, compared with the counters of the lossy links.

use crate::emulation::{ScenarioFolder, json, mean};
use netstage_core::rng::RandomStream;
use netstage_harness::{needs, seed, skip_busy};

netstage_harness::tests![no_loss_is_missing];

/// Each flow has a host, a line that loses packets for a random time, and a receiver. The line may stay so until the end:
/// no later packet shows these losses to the receiver.
fn no_loss_is_missing() {
    needs::emulation();
    let mut random = RandomStream::new(seed("losses"), "losses");
    let mut scenario =
        "[scenario]\ntitle = \"Losses\"\nduration = \"5 s\"\n[measure]\ninterval = \"500 ms\"\n\
                        flow_detail = true\n[node.r]\nkind = \"router\"\n"
            .to_owned();
    let transports = ["udp", "udp", "udp", "multicast"];
    let (mut under_way, mut undetected) = (Vec::new(), Vec::new());
    for (line, transport) in transports.iter().enumerate() {
        let begin = 200 * (1 + random.below(22));
        let end = 200 * (begin / 200 + 1 + random.below(10));
        let (fault, repair) = match random.below(3) {
            0 => ("up = false", "up = true"),
            1 => ("loss = 1", "loss = 0"),
            _ => ("ber = 0.001", "ber = 0"),
        };
        // A change after the end of the run has no effect.
        let repaired = format!(", {{ at = \"{end} ms\", {repair} }}");
        let schedule =
            format!("{{ at = \"{begin} ms\", {fault} }}{}", if end < 5_000 { &repaired } else { "" });
        let rate = 10 + random.below(400);
        let delay = random.below(40);
        // Bit errors are found at the end of the line, which the packets of the last moment reach after the end of the run.
        let finds_late = fault.starts_with("ber");
        under_way.push(if finds_late { (rate * delay).div_ceil(8 * 200) } else { 0 });
        // Two flipped bits leave the checksum as it was if they are in the same column of 16 and change a 0 and a 1.
        undetected.push(if finds_late { 1.0 / 32.0 } else { 0.0 });
        let group = if *transport == "multicast" { "multicast = { group = \"239.192.7.7\" }\n" } else { "" };
        let receiver =
            if *transport == "multicast" { format!("[\"t{line}\"]") } else { format!("\"t{line}\"") };
        scenario += &format!(
            "[node.s{line}]\n[node.t{line}]\n\
             [link.a{line}]\nends = [\"s{line}\", \"r\"]\nrate = \"100 Mbit/s\"\n\
             [link.l{line}]\nends = [\"r\", \"t{line}\"]\nrate = \"20 Mbit/s\"\ndelay = \"{delay} ms\"\n\
             schedule = [{schedule}]\nreverse = {{ schedule = [] }}\n\
             [flow.f{line}]\nfrom = \"s{line}\"\nto = {receiver}\ntransport = \"{transport}\"\n{group}\
             traffic = {{ model = \"cbr\", rate = \"{rate} kbit/s\", packet = \"200 B\" }}\n"
        );
    }
    let place = ScenarioFolder::of("losses", &scenario);
    let result = json(&place.command("emu", "out").output().unwrap());
    assert!(result["record"].is_object(), "{result}");
    if let Some(void) = result["record"]["void"].as_array().and_then(|void| void.first()) {
        skip_busy(void.to_string());
    }
    for (line, transport) in transports.iter().enumerate() {
        let subject = format!("f{line}");
        let counted = |metric| mean(&result, metric, &format!("l{line}.forward"));
        let (lost, by_link) =
            (mean(&result, "flow.lost", &subject), counted("link.lost") + counted("link.drops"));
        // The last packet of a flow can reach its line after the end of the run, in which the line counts.
        let most = by_link + 1.0 + under_way[line] as f64;
        let least = by_link - (undetected[line] * by_link).ceil();
        assert!((least..=most).contains(&lost), "{transport}: {lost}, not {least} to {most}: {scenario}");
        let sent = mean(&result, "flow.sent", &subject);
        assert!(by_link <= sent, "{transport}: {by_link} of {sent}");
    }
}
