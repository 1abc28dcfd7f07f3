//! FTP (RFC 959) by vsftpd and curl: both run without privileges, in the foreground, and keep
//! to the addresses and files they are given.

use super::ServiceSpec;
use netstage_agent_api::service::Task;
use netstage_core::time::Duration;
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The server.
pub const SERVER: &str = "vsftpd";
/// The client.
pub const CLIENT: &str = "curl";

/// Name of the file that is transferred.
const FILE: &str = "file";
const CONFIGURATION: &str = "vsftpd.conf";
/// What vsftpd cannot say over a connection, it writes to its standard input.
const SERVER_WORDS: &str = "server.words";
const SERVER_LOG: &str = "server.log";
const CLIENT_WORDS: &str = "client.words";

/// Writes what the server reads, and gives its command the arguments.
pub fn dress_server(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    let files = spec.folder.join("files");
    std::fs::create_dir_all(&files)?;
    // All of it is a hole: it takes no room, and no disk is read.
    let Task::Ftp { size } = spec.task else { unreachable!("FTP's programs have a file") };
    File::create(files.join(FILE))?.set_len(size)?;
    std::fs::write(spec.folder.join(CONFIGURATION), configure(spec))?;
    let words = File::options().create(true).append(true).read(true).open(spec.folder.join(SERVER_WORDS))?;
    command.arg(CONFIGURATION).current_dir(&spec.folder);
    command.stdin(words.try_clone()?).stdout(words.try_clone()?).stderr(words);
    Ok(())
}

/// vsftpd.conf(5). Files are named from the server's own folder.
fn configure(spec: &ServiceSpec) -> String {
    let (address, port) = (spec.destination.ip(), spec.destination.port());
    let (v4, v6, version) = if address.is_ipv4() { ("YES", "NO", "") } else { ("NO", "YES", "6") };
    let data_port = spec.data_port();
    format!(
        "listen={v4}\n\
         listen_ipv6={v6}\n\
         listen_address{version}={address}\n\
         listen_port={port}\n\
         background=NO\n\
         run_as_launching_user=YES\n\
         isolate=NO\n\
         isolate_network=NO\n\
         seccomp_sandbox=NO\n\
         local_enable=NO\n\
         write_enable=NO\n\
         anonymous_enable=YES\n\
         no_anon_password=YES\n\
         ftp_username=nobody\n\
         anon_root=files\n\
         secure_chroot_dir=files\n\
         anon_world_readable_only=NO\n\
         port_enable=NO\n\
         pasv_min_port={data_port}\n\
         pasv_max_port={data_port}\n\
         dirlist_enable=NO\n\
         max_clients=8\n\
         idle_session_timeout=86400\n\
         data_connection_timeout=86400\n\
         xferlog_enable=YES\n\
         xferlog_std_format=NO\n\
         log_ftp_protocol=YES\n\
         vsftpd_log_file={SERVER_LOG}\n"
    )
}

/// Gives the client's command its arguments: the file to its standard output, what it has to
/// say to a file.
pub fn dress_client(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    // `--disable` first: the user's own settings are left alone.
    command.args(["--disable", "--silent", "--show-error", "--globoff", "--noproxy", "*"]);
    command.arg("--interface").arg(spec.source.to_string());
    command.args(["--write-out", "%{stderr}%{json}", "--output", "-"]);
    command.arg(format!("ftp://{}/{FILE}", spec.destination));
    let words = File::create(spec.folder.join(CLIENT_WORDS))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(words);
    Ok(())
}

/// What curl writes at its end.
#[derive(Deserialize)]
struct Written {
    errormsg: Option<String>,
    time_pretransfer: f64,
    time_total: f64,
}

/// What the client said: how long the file took since it was asked for, or what went wrong.
pub fn took(spec: &ServiceSpec) -> Result<Duration, String> {
    let text = std::fs::read_to_string(spec.folder.join(CLIENT_WORDS)).unwrap_or_default();
    let last = text.lines().last().unwrap_or_default();
    let Ok(written) = serde_json::from_str::<Written>(last) else {
        return Err(if last.is_empty() { "curl ended without a word".into() } else { last.to_owned() });
    };
    match written.errormsg {
        Some(error) => Err(error),
        None => Ok(Duration::from_secs_f64((written.time_total - written.time_pretransfer).max(0.0))),
    }
}

/// The files in which its programs left their words.
pub fn logs(spec: &ServiceSpec) -> Vec<PathBuf> {
    [SERVER_WORDS, SERVER_LOG, CLIENT_WORDS].map(|name| spec.folder.join(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Instant;
    use netstage_harness::Folder;

    #[test]
    fn the_clients_words_are_understood() {
        let folder = Folder::new("ftp-words");
        let spec = ServiceSpec {
            name: "ftp".into(),
            task: Task::Ftp { size: 3_000_000 },
            source: "10.0.0.2".parse().unwrap(),
            destination: "10.0.1.2:5001".parse().unwrap(),
            start: Instant::ZERO,
            duration: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            folder: folder.to_path_buf(),
        };
        let told = |text: &str| {
            std::fs::write(folder.join(CLIENT_WORDS), text).unwrap();
            took(&spec)
        };
        let json = r#"{"errormsg":null,"exitcode":0,"time_pretransfer":0.9,"time_total":13.4,"url":"x"}"#;
        assert_eq!(told(json), Ok(Duration::from_millis(12_500)));
        let refused =
            "curl: (7) Failed\n{\"errormsg\":\"Failed to connect\",\"time_pretransfer\":0,\"time_total\":0}";
        assert_eq!(told(refused), Err("Failed to connect".into()));
        assert_eq!(
            told("curl: option --write-out: is unknown"),
            Err("curl: option --write-out: is unknown".into())
        );
        assert_eq!(told(""), Err("curl ended without a word".into()));
        assert!(configure(&spec).contains("listen_address=10.0.1.2\nlisten_port=5001\n"));
        let v6 = ServiceSpec { destination: "[fd00::1]:5001".parse().unwrap(), ..spec };
        assert!(configure(&v6).contains("listen_ipv6=YES\nlisten_address6=fd00::1\nlisten_port=5001\n"));
    }
}
