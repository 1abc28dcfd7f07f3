//! Services of a plan: flows carried by other projects' programs.

use super::flows::{Ends, Way};
use super::vpns::PlacedVpn;
use super::{Builder, Network};
use crate::file::flow::Tcp;
use crate::file::service::{Ftp, Iscsi, Service};
use crate::plan::{Datagrams, Family, FlowGroup, Program, Transport};
use crate::table::At;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Traffic;
use netstage_core::traffic::application::{Application, BlockStorage, Spread, Transfers, Way as FileWay};

/// Bytes of a disk's sector.
const SECTOR: u64 = 512;

impl Builder<'_, '_> {
    pub(super) fn services(
        &mut self,
        network: &Network,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Vec<Option<FlowGroup>> {
        let file = self.file;
        let mut services = Vec::with_capacity(file.service.0.len());
        for member in &file.service.0 {
            if file.flow.index(&member.name).is_some() {
                let message = format!("a flow is already named `{}`", member.name);
                let help = "flows and services are subjects of the same metrics: choose another name";
                self.problems.push_help(member.place, message, help);
            }
            match &member.value {
                Some(Service::Ftp(ftp)) => services.push(self.ftp(&member.name, ftp, network, vpns, end)),
                Some(Service::Iscsi(iscsi)) => {
                    services.push(self.iscsi(&member.name, iscsi, network, vpns, end));
                }
                Some(Service::Frr(_)) => {}
                None => services.push(None),
            }
        }
        services
    }

    fn ftp(
        &mut self,
        name: &str,
        ftp: &Ftp,
        network: &Network,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        let application = Application::Transfers(Transfers {
            size: Spread::constant(ftp.size.0 as u32),
            think: Duration::ZERO,
            way: FileWay::Download,
            files: Some(1),
        });
        let run = (Program::Ftp, application, &ftp.start);
        let ends = Ends::new([&ftp.client, &ftp.server], &ftp.vpn, [&ftp.via, &ftp.reverse_via]);
        self.program(name, &ends, ftp.tcp.as_ref(), run, network, vpns, end)
    }

    fn iscsi(
        &mut self,
        name: &str,
        iscsi: &Iscsi,
        network: &Network,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        if !iscsi.block.value.0.is_multiple_of(SECTOR) {
            let help = "such as \"64 KiB\"";
            self.problems.push_help(iscsi.block.place, "`block` must be a multiple of 512 B", help);
        }
        let application = Application::BlockStorage(BlockStorage {
            block: iscsi.block.value.0 as u32,
            reads: 1.0,
            queue_depth: iscsi.queue_depth.0 as u32,
            server: Duration::from_micros(100),
        });
        let run = (Program::Iscsi, application, &iscsi.start);
        let ends = Ends::new([&iscsi.client, &iscsi.server], &iscsi.vpn, [&iscsi.via, &iscsi.reverse_via]);
        self.program(name, &ends, iscsi.tcp.as_ref(), run, network, vpns, end)
    }

    /// Returns the flow of a program, from its application model and its start time.
    #[allow(clippy::too_many_arguments)]
    fn program(
        &mut self,
        name: &str,
        ends: &Ends,
        tcp: Option<&At<Tcp>>,
        (program, application, start): (Program, Application, &At<Duration>),
        network: &Network,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        let flow_path = self.way(ends, network, vpns);
        let tcp = self.tcp(tcp, ends.from.place);
        let start_time = Instant(start.value.0);
        if end.is_some_and(|end| start_time >= end) {
            self.problems.push(start.place, "this service would start after the end of the run");
            return None;
        }
        let Way { from, to, vpn, path, reverse } = flow_path?;
        Some(FlowGroup {
            name: name.to_owned(),
            from,
            to,
            vpn,
            transport: Transport::Tcp(tcp?),
            family: Family::V4,
            datagrams: Datagrams::default(),
            traffic: Traffic::Application(application),
            count: 1,
            start: start_time,
            stagger: Duration::ZERO,
            stop: end?,
            background: false,
            path,
            reverse,
            branches: Vec::new(),
            program: Some(program),
        })
    }
}
