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
    command.env(SOCKET.0, SOCKET.1);
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
pub fn configure_administrator(order: &str, command: &mut Command) {
    command.env(SOCKET.0, SOCKET.1);
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

/// Parser of the initiator's output, which has a line about once per second. The rate of reads in it is rounded down, so
/// reads are counted by the position on the disk.
#[derive(Debug)]
pub struct ReadProgress {
    line: Vec<u8>,
    sectors_per_read: u64,
    /// Sector of the next request.
    position: u64,
    requested_sectors: u64,
    completed: u64,
}

impl ReadProgress {
    /// Creates the parser for reads of this number of bytes.
    pub fn new(block: u32) -> ReadProgress {
        let sectors_per_read = u64::from((block / SECTOR).max(1));
        ReadProgress { line: Vec::new(), sectors_per_read, position: 0, requested_sectors: 0, completed: 0 }
    }

    /// Parses further output. Calls `completed` with the reads since the previous line.
    pub fn take(&mut self, output: &[u8], mut completed: impl FnMut(u64)) {
        for &byte in output {
            if !matches!(byte, b'\r' | b'\n') {
                self.line.push(byte);
                continue;
            }
            if let Some((position, in_flight)) = progress(&self.line) {
                completed(self.advance(position, in_flight));
            }
            self.line.clear();
        }
    }

    /// Returns the reads completed since the previous line. Requests start again at the beginning of the disk.
    fn advance(&mut self, position: u64, in_flight: u64) -> u64 {
        let end = if position < self.position { DISK / u64::from(SECTOR) } else { 0 };
        self.requested_sectors += (end + position).saturating_sub(self.position);
        self.position = position;
        let completed = (self.requested_sectors / self.sectors_per_read).saturating_sub(in_flight);
        let more = completed.saturating_sub(self.completed);
        self.completed += more;
        more
    }
}

/// Parses a line such as `00:00:02 - lba 442496, iops current 3425 (214 MB/s), …, in_flight 8, busy 0`, and returns the
/// sector of the next request and the number of requests without answer.
fn progress(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let number = |name: &str| {
        let (_, rest) = text.split_once(name)?;
        rest.split([',', ' ']).next()?.parse().ok()
    };
    Some((number("- lba ")?, number(" in_flight ")?))
}

/// Returns the files that contain the output of the programs.
pub fn logs(spec: &ServiceSpec) -> Vec<PathBuf> {
    [SERVER_OUTPUT, CLIENT_OUTPUT].map(|name| spec.folder.join(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(position: u64, in_flight: u64) -> String {
        format!(
            "\r00:00:01 - lba {position}, iops current 1 (0 MB/s), iops average 1 (0 MB/s), in_flight {in_flight}, busy 0   "
        )
    }

    #[test]
    fn counts_are_parsed_however_the_output_is_split() {
        // Two reads a second, which iscsi-perf reports as one, and a second without an answer.
        let text = format!("capacity is 1 byte\n\n{}{}{}", line(1_024, 1), line(2_048, 1), line(2_048, 1));
        let output = text.as_bytes();
        for cut in 0..output.len() {
            let (mut progress, mut counts) = (ReadProgress::new(262_144), Vec::new());
            progress.take(&output[..cut], |count| counts.push(count));
            progress.take(&output[cut..], |count| counts.push(count));
            progress.take(b"\r", |count| counts.push(count));
            assert_eq!(counts, [1, 2, 0]);
        }
    }

    #[test]
    fn reads_are_counted_across_the_end_of_the_disk() {
        let sectors = DISK / u64::from(SECTOR);
        let mut progress = ReadProgress::new(4_096);
        let mut total = 0;
        let lines = [line(sectors - 80, 8), line(16, 8), line(160, 0)].concat() + "\r";
        progress.take(lines.as_bytes(), |count| total += count);
        assert_eq!(total, (sectors + 160) / 8);
    }
}
