//! Series and distributions of applications and services.

use super::{OutcomeBuilder, per_bin};
use netstage_agent_api::results::FlowResult;
use netstage_agent_api::service::ServiceResult;
use netstage_core::measure::histogram::rounded;
use netstage_core::time::Instant;
use netstage_core::traffic::application::{Application, Quality, QualityDistributions};
use netstage_scenario::outcome::Metric;
use netstage_scenario::quality;

impl OutcomeBuilder {
    /// Adds an application, which delivers data in both directions.
    pub(super) fn add_dialogue(
        &mut self,
        application: &Application,
        name: &str,
        sides: [Option<&&FlowResult>; 2],
    ) {
        let bits = 8.0 / self.seconds;
        let [at_client, at_server] = sides.map(|side| per_bin(side, |c| c.received_bytes, bits));
        let both = at_client.iter().zip(&at_server).map(|(one, other)| one + other);
        self.push(Metric::FlowThroughput, name, both.collect());
        if let [Some(client), Some(server)] = sides {
            let ends = [&client.quality_distributions, &server.quality_distributions];
            self.add_quality(application, name, [&client.quality, &server.quality], ends);
        }
    }

    /// Adds a service. Like that of an application, its quality is measured at the client.
    pub(super) fn add_service(
        &mut self,
        application: &Application,
        name: &str,
        found: Option<&ServiceResult>,
    ) {
        let Some(found) = found else { return };
        let bits = 8.0 / self.seconds;
        let values = found.received.iter().map(|bytes| *bytes as f64 * bits).collect();
        self.push(Metric::FlowThroughput, name, values);
        let mut client = vec![Quality::default(); self.bins];
        // The initiator of iSCSI reports sums of reads, which have no distribution.
        let mut observed = QualityDistributions::<Vec<(u64, u64)>>::default();
        let bin = |at: Instant| ((at.0 as f64 / 1e9 / self.seconds) as usize).min(self.bins.max(1) - 1);
        for (quality, (reads, took)) in client.iter_mut().zip(&found.reads) {
            (quality.transactions, quality.transaction_ns) = (*reads, took.0);
        }
        match (found.finished, &found.error) {
            (Some((at, took)), _) => {
                let quality = &mut client[bin(at)];
                (quality.transactions, quality.transaction_ns) = (1, took.0);
                observed.transaction_time.push((rounded(took.0), 1));
            }
            (None, Some(_)) => client[0].failures = 1,
            // A client that reads until the end of the run never finishes.
            (None, None) if !found.reads.is_empty() => {}
            (None, None) => self.outcome.warnings.push(format!(
                "service.{name}: unfinished at the end of the run, after {} bytes",
                found.received.iter().sum::<u64>()
            )),
        }
        let server = vec![Quality::default(); self.bins];
        self.add_quality(
            application,
            name,
            [&client, &server],
            [&observed, &QualityDistributions::default()],
        );
    }

    /// Adds the series and distributions of an application from both ends.
    fn add_quality(
        &mut self,
        application: &Application,
        name: &str,
        [client, server]: [&[Quality]; 2],
        ends: [&QualityDistributions<Vec<(u64, u64)>>; 2],
    ) {
        let measured = quality::series(application, name, client, server);
        self.outcome.distributions.extend(quality::distributions(application, name, ends, &measured));
        for series in measured {
            self.push(series.metric, name, series.values);
        }
    }
}
