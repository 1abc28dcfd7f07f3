//! Thread that runs sessions in a namespace.

use netstage_host::netns::Namespace;
use std::io;
use std::thread::JoinHandle;
use tokio::task::JoinSet;

/// Runs the tasks on a new thread, which ends with the last task.
pub fn run<T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
    name: &str,
    namespace: &Namespace,
    tasks: Vec<T>,
    start: impl Fn(T) -> F + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let namespace = namespace.try_clone()?;
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        namespace.run(|| {
            runtime.block_on(async {
                let mut running: JoinSet<()> = tasks.into_iter().map(start).collect();
                while running.join_next().await.is_some() {}
            });
        })
    };
    std::thread::Builder::new().name(name.into()).spawn(run)
}
