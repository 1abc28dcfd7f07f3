//! A trace is written by a thread of its own, so that no disk holds up a packet.

use crate::trace::{Event, FORMAT, Head, VERSION, Writer};
use netstage_host::obstacle::Obstacle;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Events of a chunk, and chunks that may wait for the disk: some tens of megabytes.
pub(super) const CHUNK: usize = 1_024;
const WAITING: usize = 256;

/// Takes events to a file.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    chunks: SyncSender<Vec<Event>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Recorder {
    /// Begins a file, which must not be there yet.
    pub fn begin(
        path: &Path,
        began_unix_ns: u64,
        seed: u32,
        configuration: &str,
    ) -> Result<Recorder, Obstacle> {
        let told = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let remedy = "name a new file; nothing is written over";
                Obstacle::new(format!("the trace {} is there already", path.display()), remedy)
            }
            _ => Obstacle::system(format!("the trace {} cannot be written", path.display()), &error),
        };
        let head = Head {
            format: FORMAT.into(),
            version: VERSION,
            began_unix_ns,
            seed,
            configuration: configuration.into(),
        };
        let file = File::create_new(path).map_err(told)?;
        let writer = Writer::new(BufWriter::new(file), &head).map_err(told)?;
        let (chunks, received) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("pe-trace".into());
        let thread = thread.spawn(move || write(writer, &received)).map_err(told)?;
        Ok(Recorder { path: path.to_owned(), chunks, thread })
    }

    /// Hands over events; gives itself back, or tells why the trace ends here.
    pub fn write(self, events: Vec<Event>) -> Result<Recorder, String> {
        match self.chunks.try_send(events) {
            Ok(()) => Ok(self),
            // Its thread writes what it has and ends; waiting for it would hold up packets.
            Err(TrySendError::Full(_)) => {
                Err(format!("the trace {} ends: the disk is slower than the router", self.path.display()))
            }
            Err(TrySendError::Disconnected(_)) => {
                let path = self.path.display().to_string();
                let why = self.end().err().map_or("its writer has ended".into(), |error| error.to_string());
                Err(format!("the trace {path} ends: {why}"))
            }
        }
    }

    /// Ends the file, and waits until it is written.
    pub fn end(self) -> io::Result<()> {
        drop(self.chunks);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its writer has failed")))
    }
}

fn write(mut writer: Writer<BufWriter<File>>, chunks: &Receiver<Vec<Event>>) -> io::Result<()> {
    chunks.iter().try_for_each(|events| writer.write(&events))
}
