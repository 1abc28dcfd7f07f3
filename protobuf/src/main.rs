//! Generates the Rust code of every `crates/*/proto/*.proto`: `build` writes it, `verify` compares it with the
//! committed `generated.rs`. The code is committed, so that building netstage needs no generators.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<ExitCode> {
    let writes = match env::args().nth(1).as_deref() {
        Some("build") => true,
        Some("verify") => false,
        _ => return Err("usage: protobuf build|verify".into()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("this crate has a parent folder")?;
    let mut stale = false;
    for member in entries(&root.join("crates"))? {
        for proto in entries(&member.join("proto"))? {
            let (package, generated) = generate(&proto)?;
            let committed = committed(&member.join("src"), &package)?
                .ok_or_else(|| format!("{}: no generated.rs holds package {package}", member.display()))?;
            if fs::read_to_string(&committed)? == generated {
                continue;
            }
            if writes {
                fs::write(&committed, generated)?;
            } else {
                eprintln!("{} does not match {}: run `make protobuf`", committed.display(), proto.display());
                stale = true;
            }
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the paths in a folder, sorted; empty if the folder does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the package declared by a description, and its Rust code.
fn generate(proto: &Path) -> Result<(String, String)> {
    let folder = proto.parent().ok_or("a description is in a folder")?;
    let described = protox::compile([proto], [folder])?;
    let package = described.file.last().ok_or("a description compiles to a file")?.package().to_owned();
    let out = env::temp_dir().join(format!("netstage-protobuf-{}-{package}", std::process::id()));
    fs::create_dir_all(&out)?;
    tonic_prost_build::configure().build_transport(false).out_dir(&out).compile_fds(described)?;
    let generated = fs::read_to_string(out.join(format!("{package}.rs")))?;
    fs::remove_dir_all(&out)?;
    Ok((package, generated))
}

/// Returns the `generated.rs` below a folder whose methods belong to the package.
fn committed(folder: &Path, package: &str) -> Result<Option<PathBuf>> {
    for path in entries(folder)? {
        if path.is_dir() {
            if let Some(found) = committed(&path, package)? {
                return Ok(Some(found));
            }
        } else if path.ends_with("generated.rs")
            && fs::read_to_string(&path)?.contains(&format!("\"/{package}."))
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
