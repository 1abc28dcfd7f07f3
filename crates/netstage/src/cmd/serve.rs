//! `netstage serve`: the web page.

use crate::exit::{self, Failure, OK};
use crate::serve::{Settings, serve};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Options of `serve`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder of the scenarios
    #[arg(default_value = "scenarios")]
    scenarios: PathBuf,
    /// Folder of the records
    #[arg(long, value_name = "DIR", default_value = "out")]
    records: PathBuf,
    /// Where to listen; beyond this machine only with a token
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Ask for the token in this file, which is made where it is not there
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name under which this server is asked, beside its addresses
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Only show: nothing is started, stopped or written
    #[arg(long)]
    read_only: bool,
}

/// Letters of a token that is made.
const TOKEN_BYTES: usize = 32;
/// The shortest token that is taken.
const SHORTEST: usize = 16;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    if token.is_none() && !arguments.listen.ip().is_loopback() {
        let message =
            format!("{} is not only this machine: whoever reaches it could start runs", arguments.listen);
        return Err(Failure::usage(message).help("--token-file FILE lets in only who knows the token"));
    }
    if !arguments.scenarios.is_dir() {
        let message = format!("{} is no folder", arguments.scenarios.display());
        return Err(Failure::usage(message).help("netstage serve FOLDER, a folder of scenario files"));
    }
    fs::create_dir_all(&arguments.records).map_err(|e| Failure::write(&arguments.records, &e))?;
    let settings = Settings {
        scenarios: arguments.scenarios.clone(),
        records: arguments.records.clone(),
        names: arguments.name.clone(),
        token: token.clone(),
        read_only: arguments.read_only,
    };
    let failed = |error: io::Error| Failure::run(format!("cannot serve: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
            Failure::run(format!("cannot listen on {}: {error}", arguments.listen))
                .help("--listen 127.0.0.1:0 takes any free port")
        })?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let ended = async move {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
        };
        serve(settings, listener, ended, |address| {
            // What follows # stays in the browser: no log of a proxy has it.
            let secret = token.as_ref().map_or(String::new(), |token| format!("#token={token}"));
            let _ = exit::print(format!("http://{address}/{secret}\n").as_bytes());
        })
        .await
        .map_err(failed)
    })?;
    Ok(OK)
}

/// The token of a file, which is made where it is not there.
fn token(path: &Path) -> Result<String, Failure> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    let token = match made {
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
    let is_sound =
        token.len() >= SHORTEST && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    match is_sound {
        true => Ok(token),
        false => Err(Failure::usage(format!("{} holds no token", path.display())).help(format!(
            "a token has at least {SHORTEST} letters, digits, - or _; without the file one is made"
        ))),
    }
}
