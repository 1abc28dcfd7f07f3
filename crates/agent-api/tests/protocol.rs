//! The committed Rust of the protocols is what their descriptions generate.

use std::fs;
use std::path::Path;

#[test]
fn the_generated_code_fits_the_description() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut differ = Vec::new();
    for (owner, description, package, committed) in [
        ("agent-api", "agent.proto", "netstage.agent.v1", "src/protocol/generated.rs"),
        ("agent", "fleet.proto", "netstage.fleet.v1", "src/fleet/enrolment/generated.rs"),
        ("pe", "pe.proto", "netstage.pe.v1", "src/daemon/control/generated.rs"),
    ] {
        let root = crates.join(owner);
        let out = std::env::temp_dir().join(format!("netstage-protocol-{}-{package}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let described = protox::compile([description], [root.join("proto")]).unwrap();
        tonic_prost_build::configure().build_transport(false).out_dir(&out).compile_fds(described).unwrap();
        let generated = fs::read_to_string(out.join(format!("{package}.rs"))).unwrap();
        fs::remove_dir_all(&out).unwrap();

        let committed = root.join(committed);
        if std::env::var_os("BLESS").is_some() {
            fs::write(&committed, &generated).unwrap();
        }
        if fs::read_to_string(&committed).ok().as_deref() != Some(&generated) {
            differ.push(description);
        }
    }
    let advice = "run: BLESS=1 cargo test --release -p netstage-agent-api --test protocol";
    assert!(differ.is_empty(), "{differ:?}: {advice}");
}
