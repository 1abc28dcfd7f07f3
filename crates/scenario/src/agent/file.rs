//! Tables of an agent's policy file.

use crate::address::PrefixText;
use crate::plan::ServiceProgram;
use crate::scalar::{BoundedSize, FleetName, InterfaceName, PositiveDuration};
use crate::table::{List, choice, table};
use netstage_core::quantity::BitRate;

table! {
    /// An agent's policy.
    pub(crate) struct PolicyFile "the file" {
        /// Limits on requests to the agent. A limit that is not set does not apply.
        policy: Policy,
    }
}

table! {
    /// Limits on requests to the agent. A limit that is not set does not apply.
    pub(crate) struct Policy "[policy]" {
        /// Fleets whose controllers may use the agent.
        controllers: Option<List<FleetName>>,
        /// Maximum rate of everything the agent sends, with IP headers. If set, flows without a rate of their own are
        /// refused, and so are routers.
        rate: Option<BitRate>,
        /// Maximum number of bytes that the agent sends per day (UTC), with IP headers.
        bytes_per_day: Option<BoundedSize<1, 4_000_000_000_000_000>>,
        /// Maximum memory of a run and its report. Default: 2 GiB.
        memory: Option<BoundedSize<1_000_000, 4_000_000_000_000_000>>,
        /// Maximum duration of a run.
        max_duration: Option<PositiveDuration>,
        /// Maximum `lease` of a run: the time for which it may continue without its controller. Default: 2 s.
        max_lease: Option<PositiveDuration>,
        /// Prefixes the agent may send to, including multicast groups, and the hosts from which it receives, which it
        /// answers.
        destinations: Option<List<PrefixText>>,
        /// Interfaces of this host that flows and routers may use.
        interfaces: Option<List<InterfaceName>>,
        /// Allow traffic to hosts that have not agreed to receive it: ICMP echo, and UDP to a closed port.
        one_ended: bool = false,
        /// Allow senders with `pacing = "spin"`, each of which takes up to nine tenths of a CPU.
        spin: bool = false,
        /// Allow the agent to run a provider edge router.
        routers: bool = false,
        /// Allow recording of window events of the TCP flows the agent sends. It loads kernel programs, which need root.
        tcp_events: bool = false,
        /// Services whose server or client programs the agent may start. Default: none.
        services: Option<List<ServiceProgram>>,
    }
}

choice!(ServiceProgram {
    /// vsftpd and curl.
    "ftp" => ServiceProgram::Ftp,
    /// tgtd and iscsi-perf.
    "iscsi" => ServiceProgram::Iscsi,
});
