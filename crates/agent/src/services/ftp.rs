//! FTP (RFC 959) by vsftpd and curl. Both run without privileges and in the foreground, and use only the
//! addresses and files given to them.

use super::ServiceSpec;
use netstage_agent_api::service::ServiceWorkload;
use netstage_core::time::Duration;
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Program of the server.
pub const SERVER: &str = "vsftpd";
/// Program of the client.
pub const CLIENT: &str = "curl";

/// Name of the transferred file.
const FILE: &str = "file";
const CONFIGURATION: &str = "vsftpd.conf";
/// File connected to vsftpd's standard input and output; vsftpd writes errors that concern no connection to
/// its standard input.
const SERVER_OUTPUT: &str = "server.out";
const SERVER_LOG: &str = "server.log";
const CLIENT_OUTPUT: &str = "client.out";

/// Creates the server's files, and sets the arguments of its command.
pub fn configure_server(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    let files = spec.folder.join("files");
    std::fs::create_dir_all(&files)?;
    // The file is sparse: it takes no disk space, and no disk is read.
    let ServiceWorkload::Ftp { size } = spec.task else { unreachable!("the service is FTP") };
    File::create(files.join(FILE))?.set_len(size)?;
    std::fs::write(spec.folder.join(CONFIGURATION), configure(spec))?;
    let output =
        File::options().create(true).append(true).read(true).open(spec.folder.join(SERVER_OUTPUT))?;
    command.arg(CONFIGURATION);
    command.stdin(output.try_clone()?).stdout(output.try_clone()?).stderr(output);
    Ok(())
}

/// Returns the content of vsftpd.conf(5). File names are relative to the server's own folder.
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

/// Sets the arguments of the client's command. The file goes to standard output, messages go to a file.
pub fn configure_client(spec: &ServiceSpec, command: &mut Command) -> io::Result<()> {
    // `--disable` has to be first. It keeps curl from reading the user's configuration.
    command.args(["--disable", "--silent", "--show-error", "--globoff", "--noproxy", "*"]);
    command.arg("--interface").arg(spec.source.to_string());
    command.args(["--write-out", "%{stderr}%{json}", "--output", "-"]);
    command.arg(format!("ftp://{}/{FILE}", spec.destination));
    let output = File::create(spec.folder.join(CLIENT_OUTPUT))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
    Ok(())
}

/// Summary that curl writes at its end.
#[derive(Deserialize)]
struct CurlSummary {
    errormsg: Option<String>,
    time_pretransfer: f64,
    time_total: f64,
}

/// Parses the client's output. Returns the time from the request to the complete file, or the error.
pub fn transfer_time(spec: &ServiceSpec) -> Result<Duration, String> {
    let text = std::fs::read_to_string(spec.folder.join(CLIENT_OUTPUT)).unwrap_or_default();
    let last = text.lines().last().unwrap_or_default();
    let Ok(written) = serde_json::from_str::<CurlSummary>(last) else {
        return Err(if last.is_empty() { "curl ended without output".into() } else { last.to_owned() });
    };
    match written.errormsg {
        Some(error) => Err(error),
        None => Ok(Duration::from_secs_f64((written.time_total - written.time_pretransfer).max(0.0))),
    }
}

/// Returns the files that contain the output of the programs.
pub fn logs(spec: &ServiceSpec) -> Vec<PathBuf> {
    [SERVER_OUTPUT, SERVER_LOG, CLIENT_OUTPUT].map(|name| spec.folder.join(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Instant;
    use netstage_harness::TemporaryFolder;

    #[test]
    fn the_clients_output_is_parsed() {
        let folder = TemporaryFolder::new("ftp-output");
        let spec = ServiceSpec {
            name: "ftp".into(),
            task: ServiceWorkload::Ftp { size: 3_000_000 },
            source: "10.0.0.2".parse().unwrap(),
            destination: "10.0.1.2:5001".parse().unwrap(),
            start: Instant::ZERO,
            duration: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            folder: folder.to_path_buf(),
        };
        let parsed = |text: &str| {
            std::fs::write(folder.join(CLIENT_OUTPUT), text).unwrap();
            transfer_time(&spec)
        };
        let json = r#"{"errormsg":null,"exitcode":0,"time_pretransfer":0.9,"time_total":13.4,"url":"x"}"#;
        assert_eq!(parsed(json), Ok(Duration::from_millis(12_500)));
        let refused =
            "curl: (7) Failed\n{\"errormsg\":\"Failed to connect\",\"time_pretransfer\":0,\"time_total\":0}";
        assert_eq!(parsed(refused), Err("Failed to connect".into()));
        assert_eq!(
            parsed("curl: option --write-out: is unknown"),
            Err("curl: option --write-out: is unknown".into())
        );
        assert_eq!(parsed(""), Err("curl ended without output".into()));
        assert!(configure(&spec).contains("listen_address=10.0.1.2\nlisten_port=5001\n"));
        let v6 = ServiceSpec { destination: "[fd00::1]:5001".parse().unwrap(), ..spec };
        assert!(configure(&v6).contains("listen_ipv6=YES\nlisten_address6=fd00::1\nlisten_port=5001\n"));
    }
}
