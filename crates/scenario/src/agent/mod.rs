//! Policy of an agent, read and checked like a scenario: same scalars, positions and help.

mod file;

use crate::error::Errors;
use crate::read::{configuration, read_text};
use crate::table::Decode as _;
use netstage_core::fleet::Policy;
use std::path::Path;

/// Reads and checks a policy file.
pub fn load(path: &Path) -> Result<Policy, Errors> {
    parse(&path.display().to_string(), &read_text(path, "policy")?)
}

/// Reads and checks a policy.
pub fn parse(name: &str, text: &str) -> Result<Policy, Errors> {
    configuration(name, text, |file: &file::PolicyFile, _| {
        let policy = &file.policy;
        let names =
            |list: &Vec<crate::scalar::InterfaceName>| list.iter().map(|name| name.0.clone()).collect();
        Some(Policy {
            controllers: policy
                .controllers
                .as_ref()
                .map(|list| list.0.iter().map(|one| one.0.clone()).collect()),
            rate: policy.rate,
            bytes_per_day: policy.bytes_per_day.map(|size| size.0),
            memory: policy.memory.map(|size| size.0),
            max_duration: policy.max_duration.map(|span| span.0),
            max_lease: policy.max_lease.map(|span| span.0),
            destinations: policy.destinations.as_ref().map(|list| list.0.iter().map(|one| one.0).collect()),
            interfaces: policy.interfaces.as_ref().map(|list| names(&list.0)),
            one_ended: policy.one_ended,
            spin: policy.spin,
            routers: policy.routers,
            tcp_events: policy.tcp_events,
            services: policy.services.iter().flat_map(|list| &list.0).map(|one| one.name().into()).collect(),
        })
    })
}

/// Returns the reference of the policy's tables, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&file::PolicyFile::kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::edge::IpPrefix;
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Duration;

    #[test]
    fn a_policy_file_is_parsed() {
        let text = "[policy]\ncontrollers = [\"lab\"]\nrate = \"10 Mbit/s\"\nbytes_per_day = \"2 GB\"\nmemory = \"1 GB\"\nmax_duration = \"1 h\"\nmax_lease = \"1 min\"\n\
            destinations = [\"10.0.0.0/8\"]\ninterfaces = [\"eth1\"]\none_ended = true\nspin = true\ntcp_events = true\nservices = [\"ftp\"]\n";
        let policy = parse("policy.toml", text).unwrap();
        let expected = Policy {
            controllers: Some(vec!["lab".into()]),
            rate: Some(BitRate(10_000_000)),
            bytes_per_day: Some(2_000_000_000),
            memory: Some(1_000_000_000),
            max_duration: Some(Duration::from_secs(3600)),
            max_lease: Some(Duration::from_secs(60)),
            destinations: Some(vec![IpPrefix::new("10.0.0.0".parse().unwrap(), 8).unwrap()]),
            interfaces: Some(vec!["eth1".into()]),
            one_ended: true,
            spin: true,
            routers: false,
            tcp_events: true,
            services: vec!["ftp".into()],
        };
        assert_eq!(policy, expected);
        assert_eq!(parse("policy.toml", "[policy]\n").unwrap(), Policy::default());
    }

    #[test]
    fn errors_contain_position_and_remedy() {
        for (text, expected) in [
            ("[policy]\nrates = \"1 Mbit/s\"\n", "did you mean `rate`"),
            ("[policy]\ndestinations = [\"10.0.0.1/8\"]\n", "a prefix without host bits"),
            ("[policy]\nservices = [\"sh\"]\n", "iscsi"),
            ("rate = \"1 Mbit/s\"\n", "policy"),
        ] {
            let errors = parse("policy.toml", text).unwrap_err().to_string();
            assert!(errors.contains(expected) && errors.contains("policy.toml:"), "{errors}");
        }
    }
}
