//! Why an agent ends.

use tokio::sync::watch;

/// Why an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its controller wanted nothing more.
    Finished,
    /// Its controller went away without a word.
    ControllerGone,
    /// Somebody asked its process to end.
    Interrupted,
}

/// The first reason to end counts, apart from an interruption, after which the controller
/// may still be waited for.
pub fn end(sender: &watch::Sender<Option<EndReason>>, reason: EndReason) {
    sender.send_if_modified(|current| {
        let new = matches!(*current, None | Some(EndReason::Interrupted)) && *current != Some(reason);
        if new {
            *current = Some(reason);
        }
        new
    });
}
