//! Notifications to systemd, if it runs the program as a service of `Type=notify` (sd_notify(3)).

use sd_notify::NotifyState;

/// Reports that the service is ready.
pub fn ready() {
    report(NotifyState::Ready);
}

/// Reports that the service stops.
pub fn stopping() {
    report(NotifyState::Stopping);
}

fn report(state: NotifyState<'_>) {
    // Without systemd nobody listens, and a service goes on if systemd does not.
    let _ = sd_notify::notify(&[state]);
}
