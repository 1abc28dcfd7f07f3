//! `netstage measure y1564`: services compared with their agreements.

use super::{Common, TestText, quoted, units};
use crate::exit::Failure;
use netstage_core::time::Duration;
use std::fmt::Write as _;

const EXAMPLES: &str = "Examples:
  netstage measure y1564 server.example --key-file key --service data,cir=20M --performance 60
  netstage measure y1564 fra-1 --service voice,frame=218,cir=1M,delay=10ms --service data,cir=5M,eir=2M,loss=0.1";

/// Options of `measure y1564`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Y1564 {
    #[command(flatten)]
    common: Common,
    /// Service: name, then cir=RATE, and eir=RATE, frame=BYTES [1518], delay=TIME, variation=TIME, loss=PERCENT [0],
    /// policed; repeatable
    #[arg(long, value_name = "NAME,cir=RATE,…", required = true, value_parser = agreement)]
    service: Vec<Agreement>,
    /// Seconds of a step of one service [default: 60]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = units::time)]
    time: Option<Duration>,
    /// Seconds of the test of all services together [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = units::time)]
    performance: Option<Duration>,
}

/// Agreement of a service: its name, and the fields of its table.
#[derive(Clone)]
struct Agreement {
    name: String,
    fields: Vec<(&'static str, String)>,
}

impl Y1564 {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(("y1564", "Y.1564"), None, |path| {
            let test = TestText::new("activation", "y1564", path).time("step", self.time);
            let mut text = test.time("performance", self.performance).0;
            for Agreement { name, fields } in &self.service {
                let _ = writeln!(text, "\n[test.activation.service.{name}]");
                for (field, value) in fields {
                    let _ = writeln!(text, "{field} = {value}");
                }
            }
            text
        })
    }
}

/// Parses `NAME,cir=RATE,…`.
fn agreement(text: &str) -> Result<Agreement, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let is_name_character = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || !name.bytes().all(is_name_character) {
        return Err("expected a name of letters, digits and hyphens first, as in data,cir=10M".into());
    }
    let time = |value: &str| units::time(value).map(quoted);
    let rate = |value: &str| units::rate(value).map(|rate| format!("\"{} bit/s\"", rate.0));
    let mut fields: Vec<(&'static str, String)> = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (field, value) = match key {
            "cir" => ("committed", rate(value)?),
            "eir" => ("excess", rate(value)?),
            "frame" => ("frame_size", format!("\"{} B\"", units::size(value)?)),
            "delay" => ("delay", time(value)?),
            "variation" => ("delay_variation", time(value)?),
            "loss" => {
                let percent: f64 = value.parse().map_err(|_| format!("loss={value}: expected percent"))?;
                ("loss_ratio", format!("\"{percent} %\""))
            }
            "policed" if value.is_empty() => ("policed", "true".into()),
            _ => {
                let keys = "cir=, eir=, frame=, delay=, variation=, loss= or policed";
                return Err(format!("unknown part `{part}`; expected {keys}"));
            }
        };
        if fields.iter().any(|(known, _)| *known == field) {
            return Err(format!("{key} occurs twice"));
        }
        fields.push((field, value));
    }
    let has = |wanted: &str| fields.iter().any(|(field, _)| *field == wanted);
    if !has("committed") {
        return Err(format!("missing committed rate; add cir=, as in {name},cir=10M"));
    }
    if !has("frame_size") {
        fields.push(("frame_size", "\"1518 B\"".into()));
    }
    Ok(Agreement { name: name.into(), fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agreement_has_a_name_a_rate_and_bounds() {
        let voice = agreement("voice,frame=218,cir=1M,delay=10ms,loss=0.5,policed").unwrap();
        assert_eq!(voice.name, "voice");
        let fields: Vec<String> =
            voice.fields.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        assert_eq!(
            fields,
            [
                "frame_size = \"218 B\"",
                "committed = \"1000000 bit/s\"",
                "delay = \"0.01 s\"",
                "loss_ratio = \"0.5 %\"",
                "policed = true"
            ]
        );
        for (text, message) in [
            ("voice", "missing committed rate"),
            ("cir=1M", "expected a name"),
            ("a,cir=1M,cir=2M", "cir occurs twice"),
            ("a,cir=1M,mtu=9", "unknown part `mtu=9`"),
            ("a,cir=fast", "expected a number"),
            ("a,cir=1M,loss=x", "expected percent"),
        ] {
            let error = agreement(text).err().unwrap();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
