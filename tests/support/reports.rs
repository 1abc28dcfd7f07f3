//! Reports of a running speaker.

use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Returns the first value that `select` extracts from a report.
pub async fn first<R, T>(
    reports: &mut UnboundedReceiver<R>,
    patience: Duration,
    what: &str,
    mut select: impl FnMut(R) -> Option<T>,
) -> T {
    let search = async {
        loop {
            if let Some(found) = select(reports.recv().await.expect("the speaker is running")) {
                return found;
            }
        }
    };
    let found = tokio::time::timeout(patience, search).await;
    found.unwrap_or_else(|_| panic!("{what}: not within {patience:?}"))
}
