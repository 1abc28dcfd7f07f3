//! iSCSI (RFC 7143) by tgtd and iscsi-perf of libiscsi. Both run in user space, so that no kernel module is
//! needed.

use super::ServiceSpec;
use netstage_agent_api::service::ServiceWorkload;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Program of the target.
pub const SERVER: &str = "tgtd";
/// Program that configures the target.
pub const ADMINISTRATOR: &str = "tgtadm";
/// Program of the initiator.
pub const CLIENT: &str = "iscsi-perf";

/// Size of the disk, bytes. It is a sparse file, so that no real disk is read; reads start again at its
/// beginning.
const DISK: u64 = 1 << 30;
const SECTOR: u32 = 512;
/// File of the disk, and the socket through which the target is configured, in the service's own folder.
const FILE: &str = "disk";
const SOCKET: (&str, &str) = ("TGT_IPC_SOCKET", "socket");
const TARGET: &str = "iqn.2026-11.netstage:disk";
const INITIATOR: &str = "iqn.2026-11.netstage:client";
const SERVER_OUTPUT: &str = "server.out";
const CLIENT_OUTPUT: &str = "client.out";

/// Creates the target's files, and sets the arguments of its command.
pub fn configure_server(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    std::fs::create_dir_all(&spec.folder)?;
    File::create(spec.folder.join(FILE))?.set_len(DISK)?;
    command.args(["-f", "--iscsi"]).arg(format!("portal={}", spec.destination));
    command.env(SOCKET.0, SOCKET.1).current_dir(&spec.folder);
    let output = File::create(spec.folder.join(SERVER_OUTPUT))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    Ok(())
}

/// Returns the configuration commands for a listening target: a read-only disk for the client alone.
pub fn target_commands(spec: &ServiceSpec) -> [String; 4] {
    [
        format!("--op new --mode target --tid 1 -T {TARGET}"),
        format!("--op new --mode logicalunit --tid 1 --lun 1 -b {FILE}"),
        "--op update --mode logicalunit --tid 1 --lun 1 --params readonly=1".into(),
        format!("--op bind --mode target --tid 1 -I {}", spec.source),
    ]
}

/// Sets the arguments of one configuration command.
pub fn configure_administrator(spec: &ServiceSpec, order: &str, command: &mut Command) {
    command.env(SOCKET.0, SOCKET.1).current_dir(&spec.folder);
    command.args(["--lld", "iscsi"]).args(order.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
}

/// Sets the arguments of the initiator's command.
pub fn configure_client(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    let ServiceWorkload::Iscsi { block, queue_depth } = spec.task else {
        unreachable!("the service is iSCSI")
    };
    command.args(["-i", INITIATOR, "-m", &queue_depth.to_string(), "-b", &(block / SECTOR).to_string()]);
    command.arg(format!("iscsi://{}/{TARGET}/1", spec.destination));
    let output = File::create(spec.folder.join(CLIENT_OUTPUT))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
    Ok(())
}

/// Parses the initiator's output: the number of completed reads, once per second.
#[derive(Debug, Default)]
pub struct ReadProgress {
    line: Vec<u8>,
}

impl ReadProgress {
    /// Parses further output. Calls `completed` with the reads of each second.
    pub fn take(&mut self, output: &[u8], mut completed: impl FnMut(u64)) {
        for &byte in output {
            if !matches!(byte, b'\r' | b'\n') {
                self.line.push(byte);
                continue;
            }
            if let Some(count) = current_iops(&self.line) {
                completed(count);
            }
            self.line.clear();
        }
    }
}

/// Parses a line such as `00:00:02 - lba 442496, iops current 3425 (214 MB/s), iops average …`.
fn current_iops(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_, rest) = text.split_once("iops current ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Returns the files that contain the output of the programs.
pub fn logs(spec: &ServiceSpec) -> Vec<PathBuf> {
    [SERVER_OUTPUT, CLIENT_OUTPUT].map(|name| spec.folder.join(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_parsed_however_the_output_is_split() {
        let output =
            b"capacity is 1 byte\n\n\r00:00:02 - lba 4, iops current 3425 (214 MB/s), iops average 9 \
            (1 MB/s), in_flight 8, busy 0        \r00:00:01 - lba 7, iops current 12 (1 MB/s), iops";
        for cut in 0..output.len() {
            let (mut progress, mut counts) = (ReadProgress::default(), Vec::new());
            progress.take(&output[..cut], |count| counts.push(count));
            progress.take(&output[cut..], |count| counts.push(count));
            progress.take(b" average 1\r", |count| counts.push(count));
            assert_eq!(counts, [3425, 12]);
        }
    }
}
