//! Attacks from the core, drawn at random from a printed seed. No packet crosses VPNs, and every kind of attack raises an
//! alarm within five seconds. With encryption, nothing forged is delivered or counted, and no VPN's share moves.

use super::isolation::{from_core, with_labels};
use super::secure::encrypted;
use super::*;
use netstage_core::rng::RandomStream;
use std::collections::BTreeSet;

const WAY: CoreEncapsulation = CoreEncapsulation::Udp4;
const VPNS: u16 = 3;
/// Numbers of forged packets start here.
const FORGED: u64 = 1 << 32;
const STEP: Duration = Duration::from_millis(4);
/// Time before an attack, and maximum time until its alarm.
const QUIET: u64 = 1_000_000_000;
const NOTICED: u64 = 5_000_000_000;
/// Ethernet, IPv4 and UDP headers.
const OUTER: usize = 14 + 20 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Calm,
    ForgedData,
    ForgedMessage,
    Replayed,
    Duplicated,
    Reflected,
    Truncated,
    Damaged,
    WrongLabel,
    OtherSource,
    Noise,
}

use Attack::*;

/// Attacker in the core, who sees all frames.
struct Attacker {
    attack: Attack,
    random: RandomStream,
    seen: Vec<(usize, Vec<u8>)>,
    sent: u64,
}

impl Attacker {
    fn below(&mut self, limit: usize) -> usize {
        ((self.random.uniform() * limit as f64) as usize).min(limit.saturating_sub(1))
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// Returns a frame and the router that receives it.
    fn frame(&mut self) -> Option<(usize, Vec<u8>)> {
        self.sent += 1;
        let vpn = self.below(VPNS.into()) as u16;
        let inner = packet(false, 0, vpn, FORGED + self.sent, 100);
        let label = 2000 + u32::from(vpn);
        let (from, seen) = match self.attack {
            Duplicated => {
                let number = self.seen.len().checked_sub(1 + self.below(8))?;
                self.seen[number].clone()
            }
            _ => {
                let number = self.below(self.seen.len());
                self.seen.get(number)?.clone()
            }
        };
        let to = 1 - from;
        Some(match self.attack {
            Calm => return None,
            ForgedData => (1, from_core(WAY, 1, &with_labels(&[label], &inner))),
            ForgedMessage => {
                let message = self.bytes(60);
                (
                    1,
                    from_core(
                        WAY,
                        1,
                        &with_labels(&[label, 13], &[&[0x10, 0, 0, 0xd][..], &message].concat()),
                    ),
                )
            }
            Replayed | Duplicated => (to, seen),
            Reflected => (from, seen),
            Truncated => {
                let length = OUTER + self.below(seen.len() - OUTER);
                (to, seen[..length].to_vec())
            }
            Damaged => {
                let mut damaged = seen;
                let at = OUTER + self.below(damaged.len() - OUTER);
                damaged[at] ^= 1 << self.below(8);
                (to, damaged)
            }
            WrongLabel => (1, from_core(WAY, 1, &with_labels(&[500_000 + label], &inner))),
            OtherSource => (1, from_core(WAY, 3, &with_labels(&[label], &inner))),
            Noise => {
                let mut noise = seen;
                let noise_bytes = self.bytes(noise.len() - OUTER - 1);
                noise[OUTER + 1..OUTER + 4].fill(0);
                noise[OUTER + 4..].copy_from_slice(&noise_bytes[3..]);
                (to, noise)
            }
        })
    }
}

/// Result of an attack on the VPNs from side 0 to side 1.
struct AttackResult {
    /// Data packets sent and received per VPN, by the counters of the routers.
    counted: Vec<(u64, u64)>,
    /// Numbers of the packets delivered per VPN.
    delivered: Vec<Vec<u64>>,
    /// Names of the alarms of each router, raised within five seconds.
    alarms: [BTreeSet<&'static str>; 2],
}

fn run(configs: [EngineConfig; 2], attack: Attack, seed: u64) -> AttackResult {
    let mut world = TwoRouters::new(configs);
    let random = RandomStream::new(seed, "attacks").fork(&format!("{attack:?}"));
    let mut attacker = Attacker { attack, random, seen: Vec::new(), sent: 0 };
    let mut alarms: [BTreeSet<&'static str>; 2] = Default::default();
    let mut number = 0;
    while world.now.0 < QUIET + NOTICED {
        let now = world.now;
        for vpn in 0..VPNS {
            number += 1;
            world.routers[0].give(CUSTOMERS, now, &frame(100 + vpn, &packet(false, 0, vpn, number, 200)));
        }
        if now.0 >= QUIET
            && (now.0 / STEP.0).is_multiple_of(4)
            && let Some((to, frame)) = attacker.frame()
        {
            world.routers[to].give(CORE, now, &frame);
        }
        let mut watching = |now: Instant, from: usize, frame: &mut Vec<u8>| {
            attacker.seen.push((from, frame.clone()));
            Some(now + DELAY)
        };
        world.run(now + STEP, &mut watching);
        for (router, names) in world.routers.iter_mut().zip(&mut alarms) {
            let raised = router.engine.alarm_changes(now).into_iter().filter(|alarm| alarm.is_raised);
            names.extend(raised.map(|alarm| alarm.name));
        }
    }
    // Packets in flight arrive.
    world.run(world.now + Duration::from_millis(500), &mut delay);
    let mut delivered = vec![Vec::new(); VPNS.into()];
    for frame in &world.delivered[1] {
        let (vlan, bytes) = opened(frame);
        let (vpn, number) = numbers(bytes);
        assert_eq!(vlan, 100 + vpn, "{attack:?}, seed {seed}: a packet crossed VPNs");
        delivered[usize::from(vpn)].push(number);
    }
    let flow = |vpn: u16| {
        let [near, far] = [0, 1].map(|side: usize| world.routers[side].engine.flow(vpn.into()));
        (near.sent().0, far.received().packets)
    };
    AttackResult { counted: (0..VPNS).map(flow).collect(), delivered, alarms }
}

#[test]
fn with_encryption_nothing_forged_is_delivered_or_counted_and_no_share_moves() {
    let seed = netstage_harness::seed("attacks");
    let run = |attack| run([0, 1].map(|side| encrypted(side, WAY, VPNS)), attack, seed);
    let calm = run(Calm);
    assert_eq!(calm.alarms, [BTreeSet::new(), BTreeSet::new()]);
    for (attack, router, alarm) in [
        (ForgedData, 1, "unencrypted"),
        (ForgedMessage, 1, "unencrypted"),
        (Replayed, 1, "encryption_replayed"),
        (Duplicated, 1, "encryption_replayed"),
        (Reflected, 0, "encryption_foreign"),
        (Truncated, 1, "encryption_malformed"),
        (Damaged, 1, "encryption_forged"),
        (WrongLabel, 1, "label_unknown"),
        (OtherSource, 1, "unencrypted"),
        (Noise, 1, "encryption_unknown"),
    ] {
        let attacked = run(attack);
        assert!(attacked.alarms[router].contains(alarm), "{attack:?}, seed {seed}: {:?}", attacked.alarms);
        for (vpn, delivered) in attacked.delivered.iter().enumerate() {
            let distinct: BTreeSet<u64> = delivered.iter().copied().collect();
            let is_own =
                distinct.last().is_some_and(|last| *last < FORGED) && distinct.len() == delivered.len();
            assert!(is_own, "{attack:?}, seed {seed}: VPN {vpn} received a forged or repeated packet");
            let (sent, received) = attacked.counted[vpn];
            assert_eq!(received, delivered.len() as u64, "{attack:?}, seed {seed}, VPN {vpn}");
            assert_eq!(sent, received, "{attack:?}, seed {seed}, VPN {vpn}");
            // The core loses nothing, so all that was offered arrives as without the attack.
            assert_eq!(sent, calm.counted[vpn].0, "{attack:?}, seed {seed}, VPN {vpn}");
        }
    }
}

#[test]
fn in_a_trusted_core_every_attack_raises_an_alarm_at_each_end_that_sees_it() {
    let seed = netstage_harness::seed("attacks");
    let run = |attack| run([0, 1].map(|side| config(side, WAY, VPNS)), attack, seed);
    assert_eq!(run(Calm).alarms, [BTreeSet::new(), BTreeSet::new()]);
    for (attack, router, alarm) in [
        (ForgedData, 1, "more_received"),
        (ForgedData, 0, "more_received"),
        (ForgedMessage, 1, "message_malformed"),
        (Replayed, 1, "more_received"),
        (Replayed, 0, "more_received"),
        (Duplicated, 1, "more_received"),
        (Reflected, 0, "label_unknown"),
        (Truncated, 1, "tunnel_malformed"),
        (WrongLabel, 1, "label_unknown"),
        (OtherSource, 1, "wrong_sender"),
    ] {
        let attacked = run(attack);
        assert!(attacked.alarms[router].contains(alarm), "{attack:?}, seed {seed}: {:?}", attacked.alarms);
    }
}

#[test]
fn loss_and_reordering_raise_no_alarm() {
    let seed = netstage_harness::seed("attacks");
    for is_encrypted in [false, true] {
        let configs =
            [0, 1].map(|side| if is_encrypted { encrypted(side, WAY, 1) } else { config(side, WAY, 1) });
        let mut world = TwoRouters::new(configs);
        let mut random = RandomStream::new(seed, "core");
        let mut core = |now: Instant, _: usize, _: &mut Vec<u8>| {
            let (loss, late) = (random.uniform() < 0.03, random.uniform());
            (!loss).then_some(now + DELAY + Duration((late * 2e6) as u64))
        };
        for step in 0..1_500 {
            let now = world.now;
            for number in 4 * step..4 * step + 4 {
                world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, number, 200)));
            }
            world.run(now + STEP, &mut core);
            for router in &mut world.routers {
                let raised = router.engine.alarm_changes(now);
                assert_eq!(raised, [], "{is_encrypted}, seed {seed}, {} ms", now.0 / 1_000_000);
            }
        }
    }
}
