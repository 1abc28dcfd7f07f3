//! Queueing disciplines of links (tc(8)): setting them, and what they have counted.

use super::Netlink;
use super::netlink::Error;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};

/// What a queueing discipline has counted since it was set. The counters wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Packets that have left it.
    pub packets: u32,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
    /// Packets in it.
    pub held: u32,
    /// Packets it has dropped.
    pub dropped: u32,
}

/// A token bucket. Sizes count from the Ethernet header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes sent at once at most.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u32,
}

impl TokenBucket {
    /// `tc_tbf_qopt`, and the attributes that say what has no room in it (linux/pkt_sched.h).
    fn options(self) -> Vec<u8> {
        const PARAMETERS: u16 = 1;
        const RATE: u16 = 4;
        const BURST: u16 = 6;
        const ETHERNET: u8 = 1;
        // Two `tc_ratespec`, of which the second one, of peaks, is not used.
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
    /// Gives a link a queueing discipline by the kernel's name for it, in place of the one it
    /// has. `options` are laid out as the discipline reads them.
    pub fn set_queue_discipline(&mut self, link: &str, kind: &str, options: Vec<u8>) -> Result<(), Error> {
        let mut message = TcMessage::default();
        message.header.index = self.link(link)?.index as i32;
        message.header.parent = TcHandle::ROOT;
        let options = TcAttribute::Other(DefaultNla::new(libc::TCA_OPTIONS, options));
        message.attributes = vec![TcAttribute::Kind(kind.into()), options];
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let action = || format!("give {link} the queueing discipline {kind}");
        self.change(Message::NewQueueDiscipline(message), flags, action)
    }

    /// Has a link send no faster than a token bucket allows (tc-tbf(8)). Its queue tells TCP of what it drops.
    pub fn set_token_bucket(&mut self, link: &str, bucket: TokenBucket) -> Result<(), Error> {
        self.set_queue_discipline(link, "tbf", bucket.options())
    }

    /// Whether the kernel has a queueing discipline of this name. Asked for without its
    /// options on the loopback interface: a discipline that cannot do without is refused
    /// with another error than one that is unknown. For namespaces that may be changed.
    pub fn knows_qdisc(&mut self, kind: &str) -> Result<bool, Error> {
        let mut message = TcMessage::default();
        message.header.index = self.index("lo")? as i32;
        message.header.parent = TcHandle::ROOT;
        message.attributes.push(TcAttribute::Kind(kind.into()));
        let request = Message::NewQueueDiscipline(message);
        match self.change(request, NLM_F_CREATE | NLM_F_EXCL, || format!("add the discipline {kind}")) {
            Ok(()) => Ok(true),
            Err(error) => match error.source.raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                Some(libc::EINVAL | libc::EEXIST) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// What the queueing disciplines of this name have counted, by the number of their link.
    pub fn queue_statistics(&mut self, kind: &str) -> Result<Vec<(u32, QueueStatistics)>, Error> {
        let request = Message::GetQueueDiscipline(TcMessage::default());
        let answers = self.request(request, NLM_F_DUMP, || "read queueing disciplines".into())?;
        Ok(answers.into_iter().filter_map(|answer| statistics_of(answer, kind)).collect())
    }
}

fn statistics_of(answer: Message, kind: &str) -> Option<(u32, QueueStatistics)> {
    let Message::NewQueueDiscipline(message) = answer else { return None };
    message.attributes.contains(&TcAttribute::Kind(kind.into())).then_some(())?;
    let mut counted = QueueStatistics::default();
    for attribute in message.attributes {
        let TcAttribute::Stats2(groups) = attribute else { continue };
        for group in groups {
            match group {
                TcStats2::Basic(basic) => (counted.packets, counted.bytes) = (basic.packets, basic.bytes),
                TcStats2::Queue(queue) => (counted.held, counted.dropped) = (queue.qlen, queue.drops),
                _ => {}
            }
        }
    }
    Some((message.header.index as u32, counted))
}
