//! iSCSI (RFC 7143) by tgtd and libiscsi's iscsi-perf, both in user space: no module of the kernel is needed.

use super::ServiceSpec;
use netstage_agent_api::service::Task;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The target.
pub const SERVER: &str = "tgtd";
/// What tells the target of its disk.
pub const TELLER: &str = "tgtadm";
/// The initiator.
pub const CLIENT: &str = "iscsi-perf";

/// Bytes of the disk: a hole, so that no other disk is read. What is read once more is read from its beginning.
const DISK: u64 = 1 << 30;
const SECTOR: u32 = 512;
/// The disk's file, and the socket by which the target is told of it, in its own folder.
const FILE: &str = "disk";
const SOCKET: (&str, &str) = ("TGT_IPC_SOCKET", "socket");
const TARGET: &str = "iqn.2026-11.netstage:disk";
const INITIATOR: &str = "iqn.2026-11.netstage:client";
const SERVER_WORDS: &str = "server.words";
const CLIENT_WORDS: &str = "client.words";

/// Makes what the target needs, and gives its command the arguments.
pub fn dress_server(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    std::fs::create_dir_all(&spec.folder)?;
    File::create(spec.folder.join(FILE))?.set_len(DISK)?;
    command.args(["-f", "--iscsi"]).arg(format!("portal={}", spec.destination));
    command.env(SOCKET.0, SOCKET.1).current_dir(&spec.folder);
    let words = File::create(spec.folder.join(SERVER_WORDS))?;
    command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
    Ok(())
}

/// What the target is told once it listens, command by command: its disk is read only, and by the client only.
pub fn orders(spec: &ServiceSpec) -> [String; 4] {
    [
        format!("--op new --mode target --tid 1 -T {TARGET}"),
        format!("--op new --mode logicalunit --tid 1 --lun 1 -b {FILE}"),
        "--op update --mode logicalunit --tid 1 --lun 1 --params readonly=1".into(),
        format!("--op bind --mode target --tid 1 -I {}", spec.source),
    ]
}

/// Gives the command that tells the target an order its arguments.
pub fn dress_teller(spec: &ServiceSpec, order: &str, command: &mut Command) {
    command.env(SOCKET.0, SOCKET.1).current_dir(&spec.folder);
    command.args(["--lld", "iscsi"]).args(order.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
}

/// Gives the initiator's command its arguments.
pub fn dress_client(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    let Task::Iscsi { block, queue_depth } = spec.task else { unreachable!("iSCSI's programs read blocks") };
    command.args(["-i", INITIATOR, "-m", &queue_depth.to_string(), "-b", &(block / SECTOR).to_string()]);
    command.arg(format!("iscsi://{}/{TARGET}/1", spec.destination));
    let words = File::create(spec.folder.join(CLIENT_WORDS))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(words);
    Ok(())
}

/// Reads what the initiator says: every second, how many reads were answered in it.
#[derive(Debug, Default)]
pub struct Progress {
    line: Vec<u8>,
}

impl Progress {
    /// Takes what it has said; calls `answered` for each second.
    pub fn take(&mut self, said: &[u8], mut answered: impl FnMut(u64)) {
        for &byte in said {
            if !matches!(byte, b'\r' | b'\n') {
                self.line.push(byte);
                continue;
            }
            if let Some(count) = current(&self.line) {
                answered(count);
            }
            self.line.clear();
        }
    }
}

/// `00:00:02 - lba 442496, iops current 3425 (214 MB/s), iops average …`
fn current(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_, rest) = text.split_once("iops current ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The files in which its programs left their words.
pub fn logs(spec: &ServiceSpec) -> Vec<PathBuf> {
    [SERVER_WORDS, CLIENT_WORDS].map(|name| spec.folder.join(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_told_however_the_words_are_cut() {
        let said = b"capacity is 1 byte\n\n\r00:00:02 - lba 4, iops current 3425 (214 MB/s), iops average 9 \
            (1 MB/s), in_flight 8, busy 0        \r00:00:01 - lba 7, iops current 12 (1 MB/s), iops";
        for cut in 0..said.len() {
            let (mut progress, mut counts) = (Progress::default(), Vec::new());
            progress.take(&said[..cut], |count| counts.push(count));
            progress.take(&said[cut..], |count| counts.push(count));
            progress.take(b" average 1\r", |count| counts.push(count));
            assert_eq!(counts, [3425, 12]);
        }
    }
}
