//! `netstage serve`: serves the web page.

use crate::exit::{self, Failure, OK};
use crate::serve::{ServerSettings, serve};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const EXAMPLES: &str = "Examples:
  netstage serve scenarios --records out
  netstage serve --listen 0.0.0.0:8080 --token-file token --name stage.example
  netstage serve --read-only";

/// Options of `serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder of scenarios
    #[arg(default_value = "scenarios")]
    scenarios: PathBuf,
    /// Folder of records
    #[arg(long, value_name = "DIR", default_value = "out")]
    records: PathBuf,
    /// Address to listen on; all but loopback need --token-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Require the token in this file; a missing file is created
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Host name that clients may use for this server; repeatable
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    #[command(flatten)]
    fleet: crate::state_folders::FleetOption,
    /// Refuse requests that start, stop or write anything
    #[arg(long)]
    read_only: bool,
}

/// Length of a generated token.
const TOKEN_BYTES: usize = 32;
/// Minimum length of a token.
const MIN_TOKEN_BYTES: usize = 16;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    if token.is_none() && !arguments.listen.ip().is_loopback() {
        let message = format!("{} is reachable from other hosts, which could start runs", arguments.listen);
        return Err(Failure::usage(message).help("require a token with --token-file FILE"));
    }
    if !arguments.scenarios.is_dir() {
        let message = format!("{} is not a folder", arguments.scenarios.display());
        return Err(Failure::usage(message).help("pass a folder of scenario files: netstage serve FOLDER"));
    }
    fs::create_dir_all(&arguments.records).map_err(|e| Failure::write(&arguments.records, &e))?;
    let settings = ServerSettings {
        scenarios: arguments.scenarios.clone(),
        records: arguments.records.clone(),
        fleet: arguments.fleet.path(),
        names: arguments.name.clone(),
        token: token.clone(),
        read_only: arguments.read_only,
    };
    let failed = |error: io::Error| Failure::run(format!("cannot serve: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
            Failure::run(format!("cannot listen on {}: {error}", arguments.listen))
                .help("use --listen 127.0.0.1:0 for any free port")
        })?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let ended = async move {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
        };
        serve(settings, listener, ended, |address| {
            // Browsers do not send the part after #, so no proxy logs the token.
            let secret = token.as_ref().map_or(String::new(), |token| format!("#token={token}"));
            let _ = exit::print(format!("http://{address}/{secret}\n").as_bytes());
        })
        .await
        .map_err(failed)
    })?;
    Ok(OK)
}

/// Reads the token from a file, or creates the file with a random token.
fn token(path: &Path) -> Result<String, Failure> {
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    let token = match created {
        Ok(mut file) => {
            let mut random = [0; TOKEN_BYTES / 2];
            let filled = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            filled.and_then(|()| writeln!(file, "{token}")).map_err(|e| Failure::write(path, &e))?;
            token
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let read = fs::read_to_string(path);
            read.map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?
                .trim()
                .to_owned()
        }
        Err(error) => return Err(Failure::write(path, &error)),
    };
    let is_valid = token.len() >= MIN_TOKEN_BYTES
        && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    match is_valid {
        true => Ok(token),
        false => Err(Failure::usage(format!("{} does not contain a valid token", path.display())).help(format!(
            "a token has at least {MIN_TOKEN_BYTES} letters, digits, - or _; delete the file to generate one"
        ))),
    }
}
