//! The committed Rust of the protocol is what its description generates.

use std::fs;
use std::path::Path;

#[test]
fn the_generated_code_fits_the_description() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = std::env::temp_dir().join(format!("netstage-protocol-{}", std::process::id()));
    fs::create_dir_all(&out).unwrap();
    let described = protox::compile(["agent.proto"], [root.join("proto")]).unwrap();
    tonic_prost_build::configure().build_transport(false).out_dir(&out).compile_fds(described).unwrap();
    let generated = fs::read_to_string(out.join("netstage.agent.v1.rs")).unwrap();
    fs::remove_dir_all(&out).unwrap();

    let committed = root.join("src/protocol/generated.rs");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&committed, &generated).unwrap();
    }
    let same = fs::read_to_string(&committed).is_ok_and(|committed| committed == generated);
    assert!(same, "run: BLESS=1 cargo test --release -p netstage-live --test protocol");
}
