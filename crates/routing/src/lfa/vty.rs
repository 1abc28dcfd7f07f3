//! Command line of an FRR daemon over its Unix socket, as used by vtysh.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum time of a daemon for a part of its response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a daemon for a response.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Maximum length of a response, far more than that of any network.
const MAX_RESPONSE: usize = 1 << 28;
/// End of a response, which a byte for the status follows.
const END: [u8; 3] = [0; 3];

/// Connection to a daemon.
#[derive(Debug)]
pub struct Vty(UnixStream);

impl Vty {
    /// Connects to the daemon that listens at a path, such as `/run/frr/ospfd.vty`.
    pub fn connect(path: &Path) -> io::Result<Vty> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Vty(stream))
    }

    /// Returns the response to a command. Errors if the daemon refuses the command.
    pub fn ask(&mut self, command: &str) -> io::Result<String> {
        self.0.write_all(&[command.as_bytes(), &[0]].concat())?;
        let deadline = Instant::now() + MAX_TIME;
        let (mut response, mut part) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            if let Some((text, status)) = split(&response) {
                let text = String::from_utf8(text.to_vec()).map_err(io::Error::other)?;
                return match status {
                    0 => Ok(text),
                    _ => Err(io::Error::other(format!("`{command}` was refused: {}", text.trim()))),
                };
            }
            if response.len() > MAX_RESPONSE || Instant::now() > deadline {
                return Err(io::Error::other(format!("the response to `{command}` does not end")));
            }
            match self.0.read(&mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => response.extend_from_slice(&part[..length]),
            }
        }
    }
}

/// Returns the text and status of a complete response.
fn split(response: &[u8]) -> Option<(&[u8], u8)> {
    let (status, rest) = response.split_last()?;
    rest.strip_suffix(&END).map(|text| (text, *status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_harness::TemporaryFolder;
    use std::os::unix::net::UnixListener;

    /// Returns the result of a command to a daemon that responds with `parts`.
    fn asked(parts: &'static [&'static [u8]]) -> io::Result<String> {
        let folder = TemporaryFolder::new("vty");
        let path = folder.join("ospfd.vty");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut command = [0; 9];
            stream.read_exact(&mut command).unwrap();
            assert_eq!(&command, b"show ospf");
            stream.read_exact(&mut command[..1]).unwrap();
            parts.iter().for_each(|part| stream.write_all(part).unwrap());
        });
        let response = Vty::connect(&path).and_then(|mut vty| vty.ask("show ospf"));
        daemon.join().unwrap();
        response
    }

    #[test]
    fn responses_end_with_their_status() {
        assert_eq!(asked(&[b"{ }\n\0\0\0\0"]).unwrap(), "{ }\n");
        assert_eq!(asked(&[b"{", b" }\0", b"\0\0", b"\0"]).unwrap(), "{ }");
        let refused = asked(&[b"% Unknown command\n\0\0\0\x02"]).unwrap_err().to_string();
        assert_eq!(refused, "`show ospf` was refused: % Unknown command");
        assert_eq!(asked(&[b"{ }\0\0"]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
