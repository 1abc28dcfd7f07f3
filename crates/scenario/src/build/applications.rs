//! Application models of a plan: values of the tables, and published defaults for the rest.

use super::Builder;
use crate::error::SourceRange;
use crate::file::application::{
    HttpVersion, Pages, RateAdaptation, RequestResponse, Video, VideoFrames, Voip,
};
use crate::file::flow::TrafficTable as Model;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{
    Adaptation, AdaptiveVideo, Application, BlockStorage, Codec, Dns, Exchange, FetchMode, FrameVideo, Game,
    Pace, PacketTiming, SizeDistribution, Transfers, Voice, Web,
};

/// Bit rates of the HLS Authoring Specification for Apple Devices, H.264, kbit/s.
const LADDER: [u64; 9] = [145, 365, 730, 1_100, 2_000, 3_000, 4_500, 6_000, 7_800];

/// Upper bound of a random size without a configured one, in standard deviations above the mean.
const MAX_DEVIATIONS: f64 = 100.0;

impl Builder<'_, '_> {
    /// Returns the application of a traffic table, or reports a problem.
    pub(super) fn application(&mut self, model: &Model, place: SourceRange) -> Option<Application> {
        Some(match model {
            Model::Ftp(ftp) => Application::Transfers(Transfers {
                size: spread(
                    ftp.size.map(|size| size.0),
                    ftp.deviation.map(|deviation| deviation.0),
                    ftp.largest.map(|largest| largest.0),
                    SizeDistribution::lognormal(2e6, 722e3, 5e6),
                ),
                think: ftp.think,
                direction: ftp.direction,
                files: ftp.files.map(|files| files.0),
            }),
            Model::Web(pages) => Application::Web(self.web(pages)?),
            Model::Video(video) => Application::AdaptiveVideo(self.video(video)?),
            Model::VideoFrames(video) => Application::FrameVideo(frames(video)),
            Model::Voip(voip) => Application::Voice(self.voice(voip)?),
            Model::Dns(dns) => Application::Dns(Dns {
                query: dns.query.0 as u32,
                answer: SizeDistribution::constant(dns.answer.0 as u32),
                interval: dns.interval.0,
                timeout: dns.timeout.0,
                attempts: dns.attempts.0 as u32,
                server: dns.server,
            }),
            Model::Gaming(game) => Application::Game(Game {
                client: PacketTiming {
                    gap: game.client_gap.0,
                    gap_scale: Duration::ZERO,
                    size: game.client_packet.0 as f64,
                    size_scale: game.client_scale.0,
                },
                server: PacketTiming {
                    gap: game.server_gap.0,
                    gap_scale: game.server_gap_scale,
                    size: game.server_packet.0 as f64,
                    size_scale: game.server_scale.0,
                },
            }),
            Model::RequestResponse(exchange) => Application::Exchange(self.exchange(exchange)?),
            Model::BlockStorage(blocks) => Application::BlockStorage(BlockStorage {
                block: blocks.block.0 as u32,
                reads: blocks.reads.0,
                queue_depth: blocks.queue_depth.0 as u32,
                server: blocks.server,
                follow_window: blocks.follow_window,
            }),
            Model::Learned(learned) => {
                let model =
                    self.traces.load_model(&learned.file.value.0, learned.file.place, self.problems)?;
                Application::Learned { model, replay: learned.replay }
            }
            Model::Bulk(_)
            | Model::Cbr(_)
            | Model::Poisson(_)
            | Model::OnOff(_)
            | Model::Pareto(_)
            | Model::Mmpp(_)
            | Model::Trace(_) => {
                self.problems.push(place, "expected an application, found a traffic pattern");
                return None;
            }
        })
    }

    fn web(&mut self, pages: &Pages) -> Option<Web> {
        let fetching = match (pages.protocol.value, &pages.connections) {
            (HttpVersion::One, connections) => {
                FetchMode::Parallel(connections.as_ref().map_or(6, |c| c.value.0 as u32))
            }
            (HttpVersion::Two, None) => FetchMode::Multiplexed,
            (HttpVersion::Two, Some(connections)) => {
                let message = "`connections` has no effect with \"http2\", which uses one";
                self.problems.push(connections.place, message);
                return None;
            }
        };
        let object = |size: Option<u64>, deviation: Option<u64>, usual: SizeDistribution| {
            spread(size, deviation, Some(2_000_000.max(size.unwrap_or(0))), usual)
        };
        Some(Web {
            main: object(
                pages.main_size.map(|size| size.0),
                pages.main_deviation.map(|deviation| deviation.0),
                SizeDistribution::lognormal(18e3, 42e3, 2e6),
            ),
            objects: pages.objects.0 as f64,
            spread: pages.objects_vary,
            object: object(
                pages.object_size.map(|size| size.0),
                pages.object_deviation.map(|deviation| deviation.0),
                SizeDistribution::lognormal(37.6e3, 88e3, 2e6),
            ),
            request: pages.request.0 as u32,
            fetching,
            parse: pages.parse,
            think: pages.think,
            server: pages.server,
        })
    }

    fn video(&mut self, video: &Video) -> Option<AdaptiveVideo> {
        let adaptation = video.adaptation.value;
        let buffer_only = [&video.reservoir, &video.cushion];
        let misplaced = match adaptation {
            RateAdaptation::Throughput => None,
            _ => video.share.as_ref().map(|s| s.place).or(video.window.as_ref().map(|w| w.place)),
        };
        let misplaced = misplaced.or_else(|| {
            let mut set = buffer_only.into_iter().flatten().map(|time| time.place);
            set.find(|_| adaptation != RateAdaptation::Buffer)
        });
        if let Some(place) = misplaced {
            let message = "this field does not apply to the chosen `adaptation`";
            self.problems.push(place, message);
            return None;
        }
        let buffer = video.buffer.0;
        Some(AdaptiveVideo {
            rates: match &video.rates {
                Some(rates) => rates.0.clone(),
                None => LADDER.map(|rate| BitRate(rate * 1_000)).to_vec(),
            },
            segment: video.segment.0,
            buffer,
            startup: video.startup.0,
            adaptation: match adaptation {
                RateAdaptation::Fixed => Adaptation::Fixed,
                RateAdaptation::Throughput => Adaptation::Throughput {
                    share: video.share.as_ref().map_or(0.85, |share| share.value.0),
                    window: video.window.as_ref().map_or(20, |window| window.value.0 as u32),
                },
                // Shares of the 240 s buffer in the paper: 90 s and 126 s.
                RateAdaptation::Buffer => Adaptation::Buffer {
                    reservoir: video.reservoir.as_ref().map_or(buffer * 3 / 8, |time| time.value),
                    cushion: video.cushion.as_ref().map_or(buffer * 21 / 40, |time| time.value),
                },
            },
            request: video.request.0 as u32,
        })
    }

    fn voice(&mut self, voip: &Voip) -> Option<Voice> {
        let codec = voip.codec.value;
        if let Some(rate) = voip.rate.as_ref().filter(|_| codec != Codec::Opus) {
            self.problems
                .push(rate.place, "`rate` applies to \"opus\" only; the other codecs have fixed rates");
            return None;
        }
        Some(Voice {
            codec,
            rate: voip.rate.as_ref().map_or(codec.rate(), |rate| rate.value),
            packet: voip.packet.0,
            spurts: voip.talk_spurts.then_some((voip.talk.0, voip.pause.0)),
            jitter_buffer: voip.jitter_buffer,
        })
    }

    fn exchange(&mut self, exchange: &RequestResponse) -> Option<Exchange> {
        let pace = match (&exchange.think, &exchange.per_second) {
            (None, None) => Pace::Closed(Duration::ZERO),
            (Some(think), None) => Pace::Closed(think.value),
            (None, Some(rate)) => Pace::Open(rate.value.0),
            (Some(_), Some(rate)) => {
                let message = "`think` (closed loop) and `per_second` (open loop) exclude each other";
                self.problems.push(rate.place, message);
                return None;
            }
        };
        let size = |mean: u64, deviation: Option<u64>| {
            spread(Some(mean), deviation, None, SizeDistribution::constant(mean as u32))
        };
        Some(Exchange {
            request: size(exchange.request.0, exchange.request_deviation.map(|d| d.0)),
            response: size(exchange.response.0, exchange.response_deviation.map(|d| d.0)),
            pace,
            server: exchange.server,
            connections: exchange.connections.value.0 as u32,
            timeout: exchange.timeout.0,
        })
    }
}

fn frames(video: &VideoFrames) -> FrameVideo {
    let sizes = video.sizes.as_ref().map_or([5.0, 3.0, 1.0], |sizes| [0, 1, 2].map(|kind| sizes.0[kind].0));
    FrameVideo {
        rate: video.rate,
        frames_per_second: video.frames_per_second.0,
        group: video.group.0 as u32,
        b_frames: video.b_frames.0 as u32,
        sizes,
        variation: video.variation.0,
        playout_delay: video.playout_delay,
    }
}

/// Returns the configured distribution of a size, or the usual one. A mean without a deviation gives a constant.
fn spread(
    mean: Option<u64>,
    deviation: Option<u64>,
    largest: Option<u64>,
    usual: SizeDistribution,
) -> SizeDistribution {
    if mean.is_some() && deviation.unwrap_or(0) == 0 {
        return SizeDistribution::constant(
            mean.and_then(|mean| u32::try_from(mean).ok()).unwrap_or(u32::MAX),
        );
    }
    let deviation = deviation.map_or(usual.deviation, |deviation| deviation as f64);
    let mean = mean.map_or(usual.mean, |mean| mean as f64);
    let unbounded = (mean + MAX_DEVIATIONS * deviation).min(f64::from(u32::MAX));
    let usual_max = if usual.deviation > 0.0 { usual.max.max(mean) } else { unbounded };
    SizeDistribution::lognormal(mean, deviation, largest.map_or(usual_max, |max| max as f64))
}
