//! Model files from arbitrary bytes: rejected, or able to run for a while without panic or endless loop.

use netstage_core::rng::RandomStream;
use netstage_core::time::Instant;
use netstage_core::traffic::application::{Application, Endpoint, EndpointAction, EndpointRole};
use netstage_scenario::learned::ModelFile;

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(file) = ModelFile::from_json(&text) else { return };
    let application = Application::Learned { model: file.model.clone(), replay: file.model.is_recorded() };
    let carriage = file.model.carriage;
    if application.check(carriage).is_err() {
        return;
    }
    let mut client =
        Endpoint::new(&application, EndpointRole::Client, carriage, &RandomStream::new(1, "fuzz"));
    let mut server =
        Endpoint::new(&application, EndpointRole::Server, carriage, &RandomStream::new(1, "fuzz"));
    client.start(Instant::ZERO);
    let mut now = Instant::ZERO;
    for _ in 0..1_000 {
        while let Some(action) = client.poll_action() {
            match action {
                EndpointAction::Open(connection) => client.handle_connected(now, connection),
                EndpointAction::Send(connection, message) => server.handle_message(now, connection, &message),
                EndpointAction::Close(_) => {}
            }
        }
        while let Some(action) = server.poll_action() {
            if let EndpointAction::Send(connection, message) = action {
                client.handle_message(now, connection, &message);
            }
        }
        let next = client.poll_timeout().min(server.poll_timeout());
        if next == Instant::NEVER {
            return;
        }
        now = now.max(next);
        client.handle_timeout(now);
        server.handle_timeout(now);
    }
}
