//! Trace recorder. A separate thread writes the file, so that the disk never delays a packet.

use crate::trace::{EdgeEvent, FORMAT, TraceHead, TraceWriter, VERSION};
use netstage_host::startup_error::StartupError;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Events per chunk, and chunks that may wait for the disk; together some tens of megabytes.
pub(super) const CHUNK: usize = 1_024;
const WAITING: usize = 256;

/// Writer of events to a file.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    chunks: SyncSender<Vec<EdgeEvent>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Recorder {
    /// Creates a trace file, which must not exist.
    pub fn begin(
        path: &Path,
        began_unix_ns: u64,
        seed: u32,
        configuration: &str,
    ) -> Result<Recorder, StartupError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let remedy = "choose a new file name";
                StartupError::new(format!("trace {} already exists", path.display()), remedy)
            }
            _ => StartupError::from_system(format!("cannot write trace {}", path.display()), &error),
        };
        let head = TraceHead {
            format: FORMAT.into(),
            version: VERSION,
            began_unix_ns,
            seed,
            configuration: configuration.into(),
        };
        let file = File::create_new(path).map_err(failed)?;
        let writer = TraceWriter::new(BufWriter::new(file), &head).map_err(failed)?;
        let (chunks, received) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("pe-trace".into());
        let thread = thread.spawn(move || write(writer, &received)).map_err(failed)?;
        Ok(Recorder { path: path.to_owned(), chunks, thread })
    }

    /// Queues events for writing. Returns the recorder, or the reason why the trace ends here.
    pub fn write(self, events: Vec<EdgeEvent>) -> Result<Recorder, String> {
        match self.chunks.try_send(events) {
            Ok(()) => Ok(self),
            // The thread writes what it has and ends; waiting for it would delay packets.
            Err(TrySendError::Full(_)) => {
                Err(format!("trace {} stopped: the disk is slower than the router", self.path.display()))
            }
            Err(TrySendError::Disconnected(_)) => {
                let path = self.path.display().to_string();
                let why =
                    self.end().err().map_or("the writer thread has ended".into(), |error| error.to_string());
                Err(format!("trace {path} stopped: {why}"))
            }
        }
    }

    /// Ends the file and waits until it is written.
    pub fn end(self) -> io::Result<()> {
        drop(self.chunks);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")))
    }
}

fn write(mut writer: TraceWriter<BufWriter<File>>, chunks: &Receiver<Vec<EdgeEvent>>) -> io::Result<()> {
    chunks.iter().try_for_each(|events| writer.write(&events))
}
