//! Rules of IPv6 routing (ip-rule(8)).

use super::Netlink;
use super::netlink::{Message, NetlinkError};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use nix::libc;

/// Position of the rules: after local delivery (0) and that of VRFs (1000), before those of operators and the main table.
const POSITION: u32 = 1_001;

/// Rule for IPv6 packets from a link that are not for this host: the kernel drops them.
fn drop_transit(link: &str) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = AddressFamily::Inet6;
    rule.header.action = RuleAction::Blackhole;
    rule.attributes = vec![RuleAttribute::Iifname(link.into()), RuleAttribute::Priority(POSITION)];
    rule
}

impl Netlink {
    /// Makes the kernel drop IPv6 packets from a link that are not for this host. The setting `forwarding` of a link does
    /// that for IPv4 only: for IPv6, the kernel decides by the setting of all links.
    pub fn drop_ipv6_transit(&mut self, link: &str) -> Result<(), NetlinkError> {
        let action = || format!("add an IPv6 rule for {link}");
        match self.change(Message::NewRule(drop_transit(link)), NLM_F_CREATE | NLM_F_EXCL, action) {
            // A killed process has left it.
            Err(error) if error.source.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            // Without IPv6, nothing is forwarded.
            Err(error) if error.source.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            result => result,
        }
    }

    /// Removes the rule of [`drop_ipv6_transit`](Netlink::drop_ipv6_transit).
    pub fn permit_ipv6_transit(&mut self, link: &str) -> Result<(), NetlinkError> {
        let action = || format!("remove the IPv6 rule for {link}");
        self.change(Message::DelRule(drop_transit(link)), 0, action)
    }
}
