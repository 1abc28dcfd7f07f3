use super::*;
use netstage_core::time::Duration;

const SEGMENT: u64 = 1_000;

/// Record of a bulk sender with a window of `cwnd` segments, all outstanding.
fn record(time_ms: u64, cwnd: u64) -> Record {
    Record {
        time_ns: time_ms * 1_000_000,
        cookie: 1,
        namespace: 1,
        local: "10.0.0.1:5000".parse().unwrap(),
        remote: "10.0.0.2:80".parse().unwrap(),
        happened: Happened::Acknowledged,
        snapshot: Snapshot {
            state: State::Open,
            segment: SEGMENT as u32,
            cwnd: cwnd * SEGMENT,
            ssthresh: Some(5 * SEGMENT),
            in_flight: cwnd * SEGMENT,
            outstanding: cwnd * SEGMENT,
            unsent: 1 << 20,
            peer_window: 1 << 20,
            smoothed_round_trip: Some(Duration::from_millis(10)),
            min_round_trip: None,
            pacing_rate: None,
            delivery_rate: None,
            acknowledged: 0,
            retransmissions: 0,
        },
        is_modelled: false,
        marks: 0,
        is_probing: false,
        may_undo: false,
        last_sent: time_ms as u32,
        cwnd_changed: 0,
        timeout: 200,
    }
}

fn entering(time_ms: u64, from: State, to: State) -> Record {
    let mut record = record(time_ms, 10);
    record.happened = Happened::Congestion { to };
    record.snapshot.state = from;
    record
}

/// Returns the kinds of events that records cause.
fn kinds(records: &[(Record, Told)]) -> Vec<Kind> {
    let mut flows = Flows::new(0);
    let mut kinds = Vec::new();
    for (record, origin) in records {
        flows.handle(record, *origin, &mut |_, event| kinds.push(event.kind));
    }
    kinds.retain(|kind| !matches!(kind, Kind::Began | Kind::Acknowledged));
    kinds
}

fn by(function: Function) -> Told {
    Told::By(Some(function))
}

#[test]
fn the_function_determines_the_cause_of_a_reduction() {
    for (function, cause) in [
        (Function::Transmit, Cause::LocalDevice),
        (Function::TryToOpen, Cause::Ecn),
        (Function::ProcessProbeAck, Cause::TailLossProbe),
    ] {
        let change = entering(1, State::Open, State::Reducing);
        assert_eq!(kinds(&[(record(0, 10), Told::Unknown), (change, by(function))]), [Kind::Window(cause)]);
    }
    let timeout = entering(1, State::Recovery, State::Loss);
    assert_eq!(kinds(&[(timeout, by(Function::EnterLoss))]), [Kind::Window(Cause::Timeout)]);
    assert_eq!(kinds(&[(timeout, by(Function::PathMtu))]), []);
}

#[test]
fn without_functions_the_previous_record_determines_the_cause() {
    let calm = record(0, 10);
    let change = |time_ms| (entering(time_ms, State::Open, State::Reducing), Told::Unknown);
    let probing = Record { is_probing: true, ..calm };
    assert_eq!(kinds(&[(probing, Told::Unknown), change(0)]), [Kind::Window(Cause::TailLossProbe)]);
    assert_eq!(kinds(&[(calm, Told::Unknown), change(0)]), [Kind::Window(Cause::Ecn)]);
    assert_eq!(kinds(&[(calm, Told::Unknown), change(3)]), [Kind::Window(Cause::LocalDevice)]);
}

#[test]
fn a_loss_during_a_reduction_is_part_of_it() {
    let recovery = Function::EnterRecovery;
    let first = entering(1, State::Disorder, State::Recovery);
    let over = entering(2, State::Recovery, State::Open);
    let records = [(first, by(recovery)), (over, Told::By(None))];
    assert_eq!(kinds(&records), [Kind::Window(Cause::FastRetransmit), Kind::Recovered]);
    assert_eq!(kinds(&[(entering(1, State::Reducing, State::Recovery), by(recovery))]), []);
}

#[test]
fn an_undo_raises_the_threshold() {
    let mut reduced = entering(1, State::Disorder, State::Recovery);
    reduced.may_undo = true;
    let mut undone = entering(2, State::Recovery, State::Open);
    undone.snapshot.ssthresh = Some(8 * SEGMENT);
    let records = [(reduced, by(Function::EnterRecovery)), (undone, Told::By(None))];
    let expected = [Kind::Window(Cause::FastRetransmit), Kind::Window(Cause::Undo), Kind::Recovered];
    assert_eq!(kinds(&records), expected);
    // Discarding the undo state does not.
    let forgotten = entering(2, State::Recovery, State::Open);
    let records = [(reduced, by(Function::EnterRecovery)), (forgotten, Told::By(None))];
    assert_eq!(kinds(&records), [Kind::Window(Cause::FastRetransmit), Kind::Recovered]);
    // If the threshold is at its minimum already, the window shows the undo.
    let small = Record { may_undo: true, ..record(2, 1) };
    let records =
        [(reduced, by(Function::EnterRecovery)), (small, Told::Unknown), (forgotten, Told::By(None))];
    assert_eq!(kinds(&records), expected);
    // The next reduction sets its own threshold, and discards the previous undo state.
    let mut next = entering(3, State::Open, State::Reducing);
    next.snapshot.ssthresh = Some(9 * SEGMENT);
    let records = [(reduced, by(Function::EnterRecovery)), (next, by(Function::Transmit))];
    assert_eq!(kinds(&records)[1..], [Kind::Window(Cause::LocalDevice)]);
}

#[test]
fn a_window_that_falls_without_a_state_change_was_idle_or_unused() {
    let before = record(0, 40);
    let fallen = |time_ms: u64| Record { cwnd_changed: time_ms as u32, ..record(time_ms, 10) };
    let kinds_after = |after| kinds(&[(before, Told::Unknown), (after, Told::Unknown)]);
    assert_eq!(kinds_after(fallen(1_000)), [Kind::Window(Cause::IdleRestart)]);
    assert_eq!(kinds_after(fallen(150)), [Kind::Window(Cause::ApplicationLimited)]);
    assert_eq!(kinds_after(Record { is_modelled: true, ..fallen(1_000) }), []);
    // Leaving recovery sets the window right after the record.
    let leaving = Record { cwnd_changed: 1, ..entering(1, State::Recovery, State::Open) };
    let after = Record { cwnd_changed: 2, ..record(2, 5) };
    assert_eq!(kinds(&[(leaving, Told::By(None)), (after, Told::Unknown)]), [Kind::Recovered]);
}

#[test]
fn flows_are_numbered_and_closed() {
    let mut flows = Flows::new(1_000_000);
    let mut reported = Vec::new();
    let mut report = |flow: &Flow, event: &FlowEvent| reported.push((flow.id, event.time.0, event.kind));
    let closed = Record { happened: Happened::Closed, ..record(3, 10) };
    for record in [closed, record(1, 10), Record { cookie: 2, ..record(2, 10) }, closed, record(4, 10)] {
        flows.handle(&record, Told::Unknown, &mut report);
    }
    let ms = 1_000_000;
    let expected = [
        (0, 0, Kind::Began),
        (0, 0, Kind::Acknowledged),
        (1, ms, Kind::Began),
        (1, ms, Kind::Acknowledged),
        (0, 2 * ms, Kind::Ended),
        (2, 3 * ms, Kind::Began),
        (2, 3 * ms, Kind::Acknowledged),
    ];
    assert_eq!(reported, expected);
    assert_eq!(flows.all().len(), 3);
}
