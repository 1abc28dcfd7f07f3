//! Frames in pcapng files (draft-ietf-opsawg-pcapng), encoded by the `pcap-file` crate: [`CapturingPort`] records
//! the frames of another port, [`ReplayPort`] is a port that replays a file.

use super::{FramePort, ReceivedFrame};
use crate::clock;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Direction of a frame, the lowest bits of a packet's flags.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Timestamp resolution of 10⁻⁹ s.
const NANOSECONDS: u8 = 9;

/// Port that records the frames of another port with wall-clock timestamps in nanoseconds: arrival times of
/// received frames, and times of queueing of sent frames.
///
/// A write error ends the recording, but not the traffic; [`finish`](CapturingPort::finish) returns the error.
pub struct CapturingPort<P> {
    port: P,
    recording: Recording,
}

struct Recording {
    path: PathBuf,
    writer: PcapNgWriter<BufWriter<File>>,
    failed: Option<io::Error>,
}

/// Writes Ethernet frames to a new file; `name` is the interface name in the file.
pub fn write_frames<'a>(
    path: &Path,
    name: &str,
    frames: impl IntoIterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let writer = create(path, name).map_err(|error| in_file(path, error))?;
    let mut recording = Recording { path: path.into(), writer, failed: None };
    for frame in frames {
        recording.write(frame, 0, INBOUND);
    }
    recording.finish()
}

fn create(path: &Path, name: &str) -> Result<PcapNgWriter<BufWriter<File>>, PcapError> {
    let file = File::create(path).map_err(PcapError::IoError)?;
    let mut writer = PcapNgWriter::new(BufWriter::with_capacity(1 << 20, file))?;
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    interface.options = vec![
        InterfaceDescriptionOption::IfName(Cow::Owned(name.to_string())),
        InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
    ];
    writer.write_pcapng_block(interface)?;
    Ok(writer)
}

impl<P: FramePort> CapturingPort<P> {
    /// Creates a recording in a new file; `name` is the interface name in the file.
    pub fn new(port: P, path: &Path, name: &str) -> io::Result<CapturingPort<P>> {
        let writer = create(path, name).map_err(|error| in_file(path, error))?;
        Ok(CapturingPort { port, recording: Recording { path: path.into(), writer, failed: None } })
    }

    /// Completes the file and returns the recorded port.
    pub fn finish(self) -> io::Result<P> {
        self.recording.finish()?;
        Ok(self.port)
    }
}

impl Recording {
    fn finish(mut self) -> io::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let flushed = self.writer.get_mut().flush();
        flushed.map_err(|error| in_file(&self.path, PcapError::IoError(error)))
    }

    fn write(&mut self, frame: &[u8], realtime_ns: i128, direction: u32) {
        if self.failed.is_some() {
            return;
        }
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(realtime_ns.max(0) as u64),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        let written = self.writer.write_pcapng_block(block);
        self.failed = written.err().map(|error| in_file(&self.path, error));
    }
}

impl<P: FramePort> FramePort for CapturingPort<P> {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let recording = &mut self.recording;
        let mut offset = None;
        self.port.receive(limit, &mut |received| {
            let offset = *offset.get_or_insert_with(clock::realtime_offset_ns);
            recording.write(received.frame, i128::from(received.at_ns) + offset, INBOUND);
            each(received);
        })
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let is_queued = self.port.send(frame)?;
        if is_queued {
            let now = i128::from(clock::monotonic_ns()) + clock::realtime_offset_ns();
            self.recording.write(frame, now, OUTBOUND);
        }
        Ok(is_queued)
    }

    fn flush(&mut self) -> io::Result<usize> {
        self.port.flush()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn missed(&mut self) -> u64 {
        self.port.missed()
    }
}

/// Port that replays the Ethernet frames of a pcapng file with their original timing. Frames sent to it are
/// refused.
pub struct ReplayPort {
    path: PathBuf,
    reader: PcapNgReader<BufReader<File>>,
    /// Replay time of the first frame.
    start_ns: u64,
    /// Timestamp of the first frame in the file.
    first_ns: Option<u64>,
    next: Option<ReplayFrame>,
    latest_ns: u64,
    refused: usize,
    ended: bool,
}

#[derive(Debug)]
struct ReplayFrame {
    bytes: Vec<u8>,
    at_ns: u64,
}

impl ReplayPort {
    /// Opens a file whose first frame arrives at `start_ns` in monotonic time. A start far in the past delivers
    /// all frames at once.
    pub fn open(path: &Path, start_ns: u64) -> io::Result<ReplayPort> {
        let open = || PcapNgReader::new(BufReader::new(File::open(path).map_err(PcapError::IoError)?));
        Ok(ReplayPort {
            path: path.into(),
            reader: open().map_err(|error| in_file(path, error))?,
            start_ns,
            first_ns: None,
            next: None,
            latest_ns: start_ns,
            refused: 0,
            ended: false,
        })
    }

    /// Returns whether the last frame has been received.
    pub fn has_ended(&self) -> bool {
        self.ended && self.next.is_none()
    }

    /// Reads the next frame, unless one is waiting to become due.
    fn read(&mut self) -> io::Result<()> {
        while self.next.is_none() && !self.ended {
            let packet = match self.reader.next_block() {
                None => {
                    self.ended = true;
                    break;
                }
                // The crate reports every unit of time as nanoseconds.
                Some(Ok(Block::EnhancedPacket(packet))) => {
                    (packet.interface_id, packet.timestamp.as_nanos() as u64, packet.data.into_owned())
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    self.ended = true;
                    return Err(in_file(&self.path, error));
                }
            };
            let (interface, stamp, bytes) = packet;
            let Some(interface) = self.reader.interfaces().get(interface as usize) else { continue };
            if interface.linktype != DataLink::ETHERNET {
                continue;
            }
            let time_ns = scale(stamp, interface);
            let first_ns = *self.first_ns.get_or_insert(time_ns);
            // Frames of several interfaces may be out of order in the file.
            let at_ns = self.start_ns.saturating_add(time_ns.saturating_sub(first_ns));
            self.latest_ns = self.latest_ns.max(at_ns);
            self.next = Some(ReplayFrame { bytes, at_ns: self.latest_ns });
        }
        Ok(())
    }
}

/// Converts a timestamp to nanoseconds: the unit is a power of ten or two, by default microseconds.
fn scale(stamp: u64, interface: &InterfaceDescriptionBlock<'_>) -> u64 {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(value) => Some(*value),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let exponent = u32::from(resolution & 0x7f);
    let per_second =
        if resolution & 0x80 == 0 { 10_u128.checked_pow(exponent) } else { 1_u128.checked_shl(exponent) };
    let per_second = per_second.unwrap_or(u128::MAX);
    u64::try_from(u128::from(stamp) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
}

impl FramePort for ReplayPort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let now = clock::monotonic_ns();
        for count in 0..limit {
            self.read()?;
            match self.next.take_if(|frame| frame.at_ns <= now) {
                Some(ReplayFrame { bytes, at_ns }) => each(ReceivedFrame { frame: &bytes, at_ns }),
                None => return Ok(count),
            }
        }
        Ok(limit)
    }

    fn send(&mut self, _: &[u8]) -> io::Result<bool> {
        self.refused += 1;
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(std::mem::take(&mut self.refused))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        0
    }
}

fn in_file(path: &Path, error: PcapError) -> io::Error {
    let kind = match &error {
        PcapError::IoError(error) => error.kind(),
        _ => io::ErrorKind::InvalidData,
    };
    let text = match error {
        PcapError::IoError(error) => error.to_string(),
        other => format!("invalid pcapng file: {other}"),
    };
    io::Error::new(kind, format!("{}: {text}", path.display()))
}
