//! A game: small packets in both directions, as measured by Färber ("Network game traffic modelling",
//! NetGames 2002). Sizes and the server's gaps have an extreme value distribution; the client's gaps are
//! constant.

use super::playout::Playout;
use super::{
    ApplicationError, ApplicationMessage, Context, EndpointRole, HEADER, MessageContent, ModelEndpoint,
};
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Maximum packet size, which avoids fragmentation, bytes.
const MAX_SIZE: f64 = 1_400.0;
/// Minimum gap between packets, nanoseconds.
const MIN_GAP: f64 = 1e6;

/// A game.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Game {
    /// Packets from the client.
    pub client: PacketTiming,
    /// Packets from the server.
    pub server: PacketTiming,
}

/// Packets at nearly regular gaps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacketTiming {
    /// Most frequent gap.
    pub gap: Duration,
    /// Scale of the gaps' distribution; zero for a constant gap.
    pub gap_scale: Duration,
    /// Most frequent size, bytes.
    pub size: f64,
    /// Scale of the sizes' distribution, bytes; zero for a constant size.
    pub size_scale: f64,
}

impl PacketTiming {
    fn check(&self) -> Result<(), ApplicationError> {
        if self.gap.0 == 0 {
            return Err(ApplicationError::ZeroTime);
        }
        if !(self.size <= MAX_SIZE && (0.0..=MAX_SIZE).contains(&self.size_scale)) {
            return Err(ApplicationError::Size);
        }
        if self.size >= f64::from(HEADER) { Ok(()) } else { Err(ApplicationError::SmallMessage) }
    }
}

impl Game {
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        self.client.check()?;
        self.server.check()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct GameEndpoint {
    ticks: PacketTiming,
    role: EndpointRole,
    next: Instant,
    number: u32,
    playout: Playout,
}

impl GameEndpoint {
    pub fn new(model: &Game, role: EndpointRole) -> GameEndpoint {
        let ticks = if role == EndpointRole::Client { model.client } else { model.server };
        GameEndpoint { ticks, role, next: Instant::NEVER, number: 0, playout: Playout::new(None) }
    }

    fn tick(&mut self, context: &mut Context) {
        let draw = |context: &mut Context, mode: f64, scale: f64| {
            if scale > 0.0 { context.rng.extreme(mode, scale) } else { mode }
        };
        let size = draw(context, self.ticks.size, self.ticks.size_scale);
        let gap = draw(context, self.ticks.gap.0 as f64, self.ticks.gap_scale.0 as f64);
        let bytes = size.clamp(f64::from(HEADER), MAX_SIZE) as u32;
        context.send(0, bytes, self.number, MessageContent::Data);
        self.number = self.number.wrapping_add(1);
        self.next += Duration(gap.max(MIN_GAP.min(self.ticks.gap.0 as f64)) as u64);
    }
}

impl ModelEndpoint for GameEndpoint {
    fn start(&mut self, context: &mut Context) {
        if self.role == EndpointRole::Client {
            context.open(0);
        }
    }

    fn connected(&mut self, context: &mut Context, _: u32) {
        self.next = context.now;
    }

    fn message(&mut self, context: &mut Context, _: u32, message: &ApplicationMessage) {
        if self.next == Instant::NEVER {
            self.next = context.now;
        }
        self.playout.arrive(context, message.number, context.now.since(message.sent));
    }

    fn timeout(&mut self, context: &mut Context) {
        while self.next <= context.now {
            self.tick(context);
        }
    }

    fn deadline(&self) -> Instant {
        self.next
    }
}
