//! Services of a plan: flows whose bytes other people's programs carry.

use super::flows::{Ends, Way};
use super::vpns::PlacedVpn;
use super::{Builder, Network};
use crate::file::service::{Ftp, Service};
use crate::plan::{Datagrams, Family, FlowGroup, Program, Transport};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Traffic;
use netstage_core::traffic::application::{Application, Spread, Transfers, Way as FileWay};

impl<'a> From<&'a Ftp> for Ends<'a> {
    fn from(ftp: &'a Ftp) -> Ends<'a> {
        let Ftp { client, server, vpn, via, reverse_via, .. } = ftp;
        Ends {
            from: client,
            to: server,
            vpn: vpn.as_ref(),
            via: via.as_ref(),
            reverse_via: reverse_via.as_ref(),
        }
    }
}

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
                let message = format!("`{}` is the name of a flow already", member.name);
                let help = "flows and services share their names: they are subjects of the same metrics";
                self.problems.push_help(member.place, message, help);
            }
            match &member.value {
                Some(Service::Ftp(ftp)) => services.push(self.ftp(&member.name, ftp, network, vpns, end)),
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
        let way = self.way(&Ends::from(ftp), network, vpns);
        let tcp = self.tcp(ftp.tcp.as_ref(), ftp.client.place);
        let start = Instant(ftp.start.value.0);
        if end.is_some_and(|end| start >= end) {
            self.problems.push(ftp.start.place, "this service would start after the end of the run");
            return None;
        }
        let Way { from, to, vpn, path, reverse } = way?;
        Some(FlowGroup {
            name: name.to_owned(),
            from,
            to,
            vpn,
            transport: Transport::Tcp(tcp?),
            family: Family::V4,
            datagrams: Datagrams::default(),
            traffic: Traffic::Application(Application::Transfers(Transfers {
                size: Spread::constant(ftp.size.0 as u32),
                think: Duration::ZERO,
                way: FileWay::Download,
                files: Some(1),
            })),
            count: 1,
            start,
            stagger: Duration::ZERO,
            stop: end?,
            background: false,
            path,
            reverse,
            branches: Vec::new(),
            program: Some(Program::Ftp),
        })
    }
}
