//! Queueing disciplines of links (tc(8)) and their statistics.

use super::Netlink;
use super::netlink::NetlinkError;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};

/// Counters of a queueing discipline since it was set. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Packets sent.
    pub packets: u32,
    /// Bytes sent, including Ethernet headers.
    pub bytes: u64,
    /// Packets in the queue.
    pub queued: u32,
    /// Packets dropped.
    pub dropped: u32,
}

/// Token bucket. Sizes include Ethernet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Maximum burst in bytes.
    pub burst: u32,
    /// Queue limit in bytes.
    pub limit: u32,
}

impl TokenBucket {
    /// Encodes `tc_tbf_qopt`, and the attributes for values that exceed it (linux/pkt_sched.h).
    fn options(self) -> Vec<u8> {
        const PARAMETERS: u16 = 1;
        const RATE: u16 = 4;
        const BURST: u16 = 6;
        const ETHERNET: u8 = 1;
        // Two `tc_ratespec`; the second, the peak rate, is unused.
        let mut parameters = [0; 36];
        parameters[1] = ETHERNET;
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        parameters[8..12].copy_from_slice(&rate.to_ne_bytes());
        parameters[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        let attribute = |kind: u16, value: &[u8]| {
            let length = 4 + value.len() as u16;
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        [
            attribute(PARAMETERS, &parameters),
            attribute(RATE, &self.rate.to_ne_bytes()),
            attribute(BURST, &self.burst.to_ne_bytes()),
        ]
        .concat()
    }
}

impl Netlink {
    /// Replaces the queueing discipline of a link. `kind` is the kernel's name, and `options` have the layout
    /// that the discipline expects.
    pub fn set_queue_discipline(
        &mut self,
        link: &str,
        kind: &str,
        options: Vec<u8>,
    ) -> Result<(), NetlinkError> {
        let mut message = TcMessage::default();
        message.header.index = self.link(link)?.index as i32;
        message.header.parent = TcHandle::ROOT;
        let options = TcAttribute::Other(DefaultNla::new(libc::TCA_OPTIONS, options));
        message.attributes = vec![TcAttribute::Kind(kind.into()), options];
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let action = || format!("set queueing discipline {kind} on {link}");
        self.change(Message::NewQueueDiscipline(message), flags, action)
    }

    /// Limits the sending rate of a link by a token bucket (tc-tbf(8)). Drops of its queue are reported to
    /// local TCP connections.
    pub fn set_token_bucket(&mut self, link: &str, bucket: TokenBucket) -> Result<(), NetlinkError> {
        self.set_queue_discipline(link, "tbf", bucket.options())
    }

    /// Returns whether the kernel has a queueing discipline of this name. It is requested without options on
    /// the loopback interface: a known discipline that needs options is rejected with another error than an
    /// unknown one. For temporary namespaces only.
    pub fn has_qdisc(&mut self, kind: &str) -> Result<bool, NetlinkError> {
        let mut message = TcMessage::default();
        message.header.index = self.index("lo")? as i32;
        message.header.parent = TcHandle::ROOT;
        message.attributes.push(TcAttribute::Kind(kind.into()));
        let request = Message::NewQueueDiscipline(message);
        match self.change(request, NLM_F_CREATE | NLM_F_EXCL, || format!("add queueing discipline {kind}")) {
            Ok(()) => Ok(true),
            Err(error) => match error.source.raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                Some(libc::EINVAL | libc::EEXIST) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Returns the statistics of queueing disciplines of this name, by link index.
    pub fn queue_statistics(&mut self, kind: &str) -> Result<Vec<(u32, QueueStatistics)>, NetlinkError> {
        let request = Message::GetQueueDiscipline(TcMessage::default());
        let responses = self.request(request, NLM_F_DUMP, || "read queueing disciplines".into())?;
        Ok(responses.into_iter().filter_map(|response| statistics_of(response, kind)).collect())
    }
}

fn statistics_of(response: Message, kind: &str) -> Option<(u32, QueueStatistics)> {
    let Message::NewQueueDiscipline(message) = response else { return None };
    message.attributes.contains(&TcAttribute::Kind(kind.into())).then_some(())?;
    let mut statistics = QueueStatistics::default();
    for attribute in message.attributes {
        let TcAttribute::Stats2(groups) = attribute else { continue };
        for group in groups {
            match group {
                TcStats2::Basic(basic) => {
                    (statistics.packets, statistics.bytes) = (basic.packets, basic.bytes)
                }
                TcStats2::Queue(queue) => (statistics.queued, statistics.dropped) = (queue.qlen, queue.drops),
                _ => {}
            }
        }
    }
    Some((message.header.index as u32, statistics))
}
