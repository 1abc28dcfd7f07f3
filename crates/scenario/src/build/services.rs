//! Services of a plan: flows carried by other projects' programs.

use super::flows::{FlowPath, PathFields};
use super::vpns::PlacedVpn;
use super::{Builder, NodeGraph};
use crate::file::flow::TcpTable;
use crate::file::service::{FtpServiceTable, Iscsi, ServiceTable};
use crate::plan::{DatagramOptions, FlowGroup, FlowTransport, IpVersion, ServiceProgram};
use crate::table::Located;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::FlowTraffic;
use netstage_core::traffic::application::{
    Application, BlockStorage, SizeDistribution, TransferDirection as FileWay, Transfers,
};
use std::rc::Rc;

/// Bytes of a disk's sector.
const SECTOR: u64 = 512;

impl Builder<'_, '_> {
    pub(super) fn services(
        &mut self,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Vec<Option<FlowGroup>> {
        let file = self.file;
        let mut services = Vec::with_capacity(file.service.0.len());
        for member in file.service.0.iter() {
            if file.flow.index(&member.name).is_some() {
                let message = format!("a flow is already named `{}`", member.name);
                let help = "flows and services are subjects of the same metrics: choose another name";
                self.problems.push_help(member.place, message, help);
            }
            match member.value.as_deref() {
                Some(ServiceTable::Ftp(ftp)) => {
                    services.push(self.ftp(&member.name, ftp, network, vpns, end))
                }
                Some(ServiceTable::Iscsi(iscsi)) => {
                    services.push(self.iscsi(&member.name, iscsi, network, vpns, end));
                }
                Some(ServiceTable::Frr(_) | ServiceTable::Bird(_)) => {}
                None => services.push(None),
            }
        }
        services
    }

    fn ftp(
        &mut self,
        name: &str,
        ftp: &FtpServiceTable,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        let application = Application::Transfers(Transfers {
            size: SizeDistribution::constant(ftp.size.0 as u32),
            think: Duration::ZERO,
            direction: FileWay::Download,
            files: Some(1),
        });
        let run = (ServiceProgram::Ftp, application, &ftp.start);
        let ends = PathFields::new([&ftp.client, &ftp.server], &ftp.vpn, [&ftp.via, &ftp.reverse_via]);
        self.program(name, &ends, ftp.tcp.as_ref(), run, network, vpns, end)
    }

    fn iscsi(
        &mut self,
        name: &str,
        iscsi: &Iscsi,
        network: &NodeGraph,
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
            follow_window: false,
        });
        let run = (ServiceProgram::Iscsi, application, &iscsi.start);
        let ends =
            PathFields::new([&iscsi.client, &iscsi.server], &iscsi.vpn, [&iscsi.via, &iscsi.reverse_via]);
        self.program(name, &ends, iscsi.tcp.as_ref(), run, network, vpns, end)
    }

    /// Returns the flow of a program, from its application model and its start time.
    #[allow(clippy::too_many_arguments)]
    fn program(
        &mut self,
        name: &str,
        ends: &PathFields,
        tcp: Option<&Located<Rc<TcpTable>>>,
        (program, application, start): (ServiceProgram, Application, &Located<Duration>),
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        let flow_path = self.flow_path(ends, network, vpns);
        let tcp = self.tcp(tcp, ends.from.place);
        let start_time = Instant(start.value.0);
        if end.is_some_and(|end| start_time >= end) {
            self.problems.push(start.place, "this service would start after the end of the run");
            return None;
        }
        let FlowPath { from, to, vpn, path, reverse } = flow_path?;
        Some(FlowGroup {
            name: name.to_owned(),
            from,
            to,
            vpn,
            transport: FlowTransport::Tcp(tcp?),
            family: IpVersion::V4,
            any_version: false,
            datagrams: DatagramOptions::default(),
            traffic: FlowTraffic::Application(application),
            count: 1,
            start: start_time,
            stagger: Duration::ZERO,
            stop: end?,
            background: false,
            path,
            reverse,
            branches: Vec::new(),
            program: Some(program),
            exact: false,
        })
    }
}
