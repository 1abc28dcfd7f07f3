use super::*;
use netstage_core::time::Duration;

const SEGMENT: u64 = 1_000;

/// Record of a bulk sender with a window of `cwnd` segments, all outstanding.
fn record(time_ms: u64, cwnd: u64) -> TcpRecord {
    TcpRecord {
        time_ns: time_ms * 1_000_000,
        cookie: 1,
        namespace: 1,
        local: "10.0.0.1:5000".parse().unwrap(),
        remote: "10.0.0.2:80".parse().unwrap(),
        kind: RecordKind::Acknowledged,
        snapshot: FlowSnapshot {
            state: CongestionState::Open,
            segment: SEGMENT as u32,
            cwnd: cwnd * SEGMENT,
            ssthresh: Some(5 * SEGMENT),
            in_flight: cwnd * SEGMENT,
            outstanding: cwnd * SEGMENT,
            unsent: 1 << 20,
            peer_window: 1 << 20,
            smoothed_round_trip: Some(Duration::from_millis(10)),
            min_round_trip: None,
            latest_round_trip: None,
            pacing_rate: None,
            delivery_rate: None,
            acknowledged: 0,
            retransmissions: 0,
            send_buffer_full: false,
            model_based: false,
        },
        marks: 0,
        is_probing: false,
        may_undo: false,
        last_sent: time_ms as u32,
        cwnd_changed: 0,
        timeout: 200,
    }
}

fn entering(time_ms: u64, from: CongestionState, to: CongestionState) -> TcpRecord {
    let mut record = record(time_ms, 10);
    record.kind = RecordKind::Congestion { to };
    record.snapshot.state = from;
    record
}

/// Returns the kinds of events that records cause.
fn kinds(records: &[(TcpRecord, ChangeOrigin)]) -> Vec<FlowEventKind> {
    let mut flows = Flows::new(0);
    let mut kinds = Vec::new();
    for (record, origin) in records {
        flows.handle(record, *origin, &mut |_, event| kinds.push(event.kind));
    }
    kinds.retain(|kind| !matches!(kind, FlowEventKind::Began | FlowEventKind::Acknowledged));
    kinds
}

fn by(function: Function) -> ChangeOrigin {
    ChangeOrigin::CallStack(Some(function))
}

#[test]
fn the_function_determines_the_cause_of_a_reduction() {
    for (function, cause) in [
        (Function::Transmit, WindowChangeCause::LocalDevice),
        (Function::TryToOpen, WindowChangeCause::Ecn),
        (Function::ProcessProbeAck, WindowChangeCause::TailLossProbe),
    ] {
        let change = entering(1, CongestionState::Open, CongestionState::Reducing);
        assert_eq!(
            kinds(&[(record(0, 10), ChangeOrigin::Unknown), (change, by(function))]),
            [FlowEventKind::Window(cause)]
        );
    }
    let timeout = entering(1, CongestionState::Recovery, CongestionState::Loss);
    assert_eq!(
        kinds(&[(timeout, by(Function::EnterLoss))]),
        [FlowEventKind::Window(WindowChangeCause::Timeout)]
    );
    assert_eq!(
        kinds(&[(timeout, by(Function::PathMtu))]),
        [FlowEventKind::Window(WindowChangeCause::PathMtu)]
    );
}

#[test]
fn without_functions_the_previous_record_determines_the_cause() {
    let calm = record(0, 10);
    let change = |time_ms| {
        (entering(time_ms, CongestionState::Open, CongestionState::Reducing), ChangeOrigin::Unknown)
    };
    let probing = TcpRecord { is_probing: true, ..calm };
    assert_eq!(
        kinds(&[(probing, ChangeOrigin::Unknown), change(0)]),
        [FlowEventKind::Window(WindowChangeCause::TailLossProbe)]
    );
    assert_eq!(
        kinds(&[(calm, ChangeOrigin::Unknown), change(0)]),
        [FlowEventKind::Window(WindowChangeCause::Ecn)]
    );
    assert_eq!(
        kinds(&[(calm, ChangeOrigin::Unknown), change(3)]),
        [FlowEventKind::Window(WindowChangeCause::LocalDevice)]
    );
}

#[test]
fn a_loss_during_a_reduction_is_part_of_it() {
    let recovery = Function::EnterRecovery;
    let first = entering(1, CongestionState::Disorder, CongestionState::Recovery);
    let over = entering(2, CongestionState::Recovery, CongestionState::Open);
    let records = [(first, by(recovery)), (over, ChangeOrigin::CallStack(None))];
    assert_eq!(
        kinds(&records),
        [FlowEventKind::Window(WindowChangeCause::FastRetransmit), FlowEventKind::Recovered]
    );
    assert_eq!(
        kinds(&[(entering(1, CongestionState::Reducing, CongestionState::Recovery), by(recovery))]),
        []
    );
}

#[test]
fn an_undo_raises_the_threshold() {
    let mut reduced = entering(1, CongestionState::Disorder, CongestionState::Recovery);
    reduced.may_undo = true;
    let mut undone = entering(2, CongestionState::Recovery, CongestionState::Open);
    undone.snapshot.ssthresh = Some(8 * SEGMENT);
    let records = [(reduced, by(Function::EnterRecovery)), (undone, ChangeOrigin::CallStack(None))];
    let expected = [
        FlowEventKind::Window(WindowChangeCause::FastRetransmit),
        FlowEventKind::Window(WindowChangeCause::Undo),
        FlowEventKind::Recovered,
    ];
    assert_eq!(kinds(&records), expected);
    // Discarding the undo state does not.
    let forgotten = entering(2, CongestionState::Recovery, CongestionState::Open);
    let records = [(reduced, by(Function::EnterRecovery)), (forgotten, ChangeOrigin::CallStack(None))];
    assert_eq!(
        kinds(&records),
        [FlowEventKind::Window(WindowChangeCause::FastRetransmit), FlowEventKind::Recovered]
    );
    // If the threshold is at its minimum already, the window shows the undo.
    let small = TcpRecord { may_undo: true, ..record(2, 1) };
    let records = [
        (reduced, by(Function::EnterRecovery)),
        (small, ChangeOrigin::Unknown),
        (forgotten, ChangeOrigin::CallStack(None)),
    ];
    assert_eq!(kinds(&records), expected);
    // The next reduction sets its own threshold, and discards the previous undo state.
    let mut next = entering(3, CongestionState::Open, CongestionState::Reducing);
    next.snapshot.ssthresh = Some(9 * SEGMENT);
    let records = [(reduced, by(Function::EnterRecovery)), (next, by(Function::Transmit))];
    assert_eq!(kinds(&records)[1..], [FlowEventKind::Window(WindowChangeCause::LocalDevice)]);
}

#[test]
fn a_window_that_falls_without_a_state_change_was_idle_or_unused() {
    let before = record(0, 40);
    let fallen = |time_ms: u64| {
        let mut record = TcpRecord { cwnd_changed: time_ms as u32, ..record(time_ms, 10) };
        record.snapshot.acknowledged = 40 * SEGMENT;
        record
    };
    let kinds_after = |after| kinds(&[(before, ChangeOrigin::Unknown), (after, ChangeOrigin::Unknown)]);
    assert_eq!(kinds_after(fallen(1_000)), [FlowEventKind::Window(WindowChangeCause::IdleRestart)]);
    assert_eq!(kinds_after(fallen(150)), [FlowEventKind::Window(WindowChangeCause::ApplicationLimited)]);
    let mut modeled = fallen(1_000);
    modeled.snapshot.model_based = true;
    assert_eq!(kinds_after(modeled), []);
    // Data that was never acknowledged is a lost tail, not a pause.
    let mut lost_tail = fallen(1_000);
    lost_tail.snapshot.acknowledged = 39 * SEGMENT;
    assert_eq!(kinds_after(lost_tail), [FlowEventKind::Window(WindowChangeCause::ApplicationLimited)]);
    // Leaving recovery sets the window right after the record.
    let leaving =
        TcpRecord { cwnd_changed: 1, ..entering(1, CongestionState::Recovery, CongestionState::Open) };
    let after = TcpRecord { cwnd_changed: 2, ..record(2, 5) };
    assert_eq!(
        kinds(&[(leaving, ChangeOrigin::CallStack(None)), (after, ChangeOrigin::Unknown)]),
        [FlowEventKind::Recovered]
    );
}

#[test]
fn flows_are_numbered_and_closed() {
    let mut flows = Flows::new(1_000_000);
    let mut reported = Vec::new();
    let mut report =
        |flow: &WatchedFlow, event: &FlowEvent| reported.push((flow.id, event.time.0, event.kind));
    let closed = TcpRecord { kind: RecordKind::Closed, ..record(3, 10) };
    for record in [closed, record(1, 10), TcpRecord { cookie: 2, ..record(2, 10) }, closed, record(4, 10)] {
        flows.handle(&record, ChangeOrigin::Unknown, &mut report);
    }
    let ms = 1_000_000;
    let expected = [
        (0, 0, FlowEventKind::Began),
        (0, 0, FlowEventKind::Acknowledged),
        (1, ms, FlowEventKind::Began),
        (1, ms, FlowEventKind::Acknowledged),
        (0, 2 * ms, FlowEventKind::Ended),
        (2, 3 * ms, FlowEventKind::Began),
        (2, 3 * ms, FlowEventKind::Acknowledged),
    ];
    assert_eq!(reported, expected);
    assert_eq!(flows.all().len(), 3);
}
