//! Reasons why an agent ends.

use tokio::sync::watch;

/// Reason why an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The controller finished it.
    Finished,
    /// The connection to the controller was lost.
    ControllerGone,
    /// The process was interrupted.
    Interrupted,
}

/// Records the reason to end. The first one counts, except that a later one replaces an interruption, after
/// which the agent may still wait for its controller.
pub fn end(sender: &watch::Sender<Option<EndReason>>, reason: EndReason) {
    sender.send_if_modified(|current| {
        let new = matches!(*current, None | Some(EndReason::Interrupted)) && *current != Some(reason);
        if new {
            *current = Some(reason);
        }
        new
    });
}
