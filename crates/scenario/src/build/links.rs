//! Links of a plan: the queue and the scheduled changes of each direction.

use super::{Builder, NodeGraph};
use crate::error::did_you_mean;
use crate::file::network::{Drr, LinkDirectionTable, QueueTable};
use crate::plan::LinkPlan;
use netstage_core::link::{self, Jitter, JitterDistribution};
use netstage_core::quantity::Capacity;
use netstage_core::queue::{self, ClassConfig, DrrConfig, RedConfig};
use netstage_core::time::{Duration, Instant};

impl Builder<'_, '_> {
    pub(super) fn links(
        &mut self,
        network: &NodeGraph,
        weights: &[f64],
        end: Option<Instant>,
    ) -> Option<Vec<LinkPlan>> {
        let mut links = Vec::with_capacity(self.file.link.0.len());
        for (index, member) in self.file.link.0.iter().enumerate() {
            let link = member.value.as_ref()?;
            let ends = network.ends[index]?;
            let directions =
                [0, 1].map(|d| self.direction(&member.name, &link.directions[d], ends[d], weights, end));
            let [Some(forward), Some(reverse)] = directions else { continue };
            links.push(LinkPlan {
                name: member.name.clone(),
                ends,
                kind: link.kind.value,
                directions: [forward, reverse],
            });
        }
        (links.len() == self.file.link.0.len()).then_some(links)
    }

    fn direction(
        &mut self,
        link: &str,
        direction: &LinkDirectionTable,
        sender: usize,
        weights: &[f64],
        end: Option<Instant>,
    ) -> Option<link::LinkDirectionConfig> {
        let port = self.file.node.0[sender].value.as_ref();
        let port_buffer = port.and_then(|p| p.buffer).filter(|_| !direction.buffer.own);
        let port_queue = port.and_then(|p| p.queue.as_ref()).filter(|_| !direction.queue.own);
        let buffer = port_buffer.unwrap_or(direction.buffer.value);
        let queue = self.queue(port_queue.unwrap_or(&direction.queue.value), direction, buffer, weights)?;
        let mut schedule: Vec<(Instant, link::LinkChange)> = direction
            .schedule
            .0
            .iter()
            .map(|change| {
                let at = Instant(change.at.value.0);
                if end.is_some_and(|end| at > end) {
                    self.warnings
                        .insert(format!("link.{link}: the change at {at:?} is after the end of the run"));
                }
                let change = link::LinkChange {
                    rate: change.rate,
                    delay: change.delay,
                    loss: change.loss.map(|p| p.0),
                    bit_error_rate: change.ber.map(|p| p.0),
                    up: change.up,
                };
                (at, change)
            })
            .collect();
        schedule.sort_by_key(|(at, _)| *at);
        let jitter = direction.jitter.as_ref().map_or(
            Jitter { amount: Duration::ZERO, distribution: JitterDistribution::Uniform, reorder: false },
            |j| Jitter { amount: j.amount, distribution: j.distribution, reorder: j.reorder },
        );
        Some(link::LinkDirectionConfig {
            rate: direction.rate,
            delay: direction.delay,
            buffer,
            queue,
            overhead: direction.overhead.0 as u32,
            loss: direction.loss.0,
            bit_error_rate: direction.ber.0,
            jitter,
            duplicate: direction.duplicate.0,
            schedule,
        })
    }

    fn queue(
        &mut self,
        queue: &QueueTable,
        direction: &LinkDirectionTable,
        buffer: Capacity,
        weights: &[f64],
    ) -> Option<queue::QueueConfig> {
        Some(match queue {
            QueueTable::DropTail(_) => queue::QueueConfig::DropTail,
            QueueTable::Red(red) => {
                if red.min_threshold.value.0 >= red.max_threshold.0 {
                    let place = red.min_threshold.place;
                    self.problems.push(place, "`min_threshold` must be below `max_threshold`");
                    return None;
                }
                queue::QueueConfig::Red(RedConfig {
                    min_threshold: red.min_threshold.value.0,
                    max_threshold: red.max_threshold.0,
                    max_probability: red.max_probability.0,
                    weight: red.weight.0,
                    ecn: red.ecn,
                })
            }
            QueueTable::Codel(codel) => queue::QueueConfig::Codel(codel.config()),
            QueueTable::FqCodel(fq) => queue::QueueConfig::FqCodel(fq.config()),
            QueueTable::Priority(_) => queue::QueueConfig::Classes(
                [0, 1]
                    .map(|priority| ClassConfig {
                        priority,
                        weight: 1.0,
                        queue: queue::QueueConfig::DropTail,
                        buffer,
                    })
                    .into(),
            ),
            QueueTable::Drr(drr) => queue::QueueConfig::DeficitRoundRobin(DrrConfig {
                weights: self.class_weights(drr, direction, weights)?,
                buffer_per_class: drr.buffer_per_class.unwrap_or(buffer),
            }),
        })
    }

    fn class_weights(
        &mut self,
        drr: &Drr,
        direction: &LinkDirectionTable,
        weights: &[f64],
    ) -> Option<Vec<f64>> {
        let mut classes: Vec<f64> = weights.to_vec();
        for (name, weight) in drr.weights.iter().flat_map(|w| &w.0) {
            match self.file.vpn.index(name) {
                Some(index) => classes[index] = *weight,
                None => {
                    let help = did_you_mean(name, self.file.vpn.names());
                    self.problems.push_with_help(name.place, format!("unknown vpn `{}`", name.value), help);
                    return None;
                }
            }
        }
        classes.push(drr.default_weight.value.0);
        let (min, max) =
            classes.iter().fold((f64::INFINITY, 0f64), |(min, max), w| (min.min(*w), max.max(*w)));
        if max > min * 1e6 {
            let place = direction.queue.place;
            self.problems.push(place, "the class weights differ by more than a factor of 1,000,000");
            return None;
        }
        Some(classes)
    }
}
