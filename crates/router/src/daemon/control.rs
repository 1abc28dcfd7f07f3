//! Control socket, which only the router's user may open. A request is one line of JSON, its response one
//! line per item. Large responses are streamed.

use super::bfd::BfdQuery;
use super::forward::RouterCommandSender;
use super::reload::RouterConfigurationFile;
use super::rsvp::{self, RsvpCommands};
use super::state::{LabelQuery, LabelState, RouteFilter, RouteQuery, RouteState, RouterState};
use netstage_host::signals::Signals;
use netstage_host::socket::ControlSocket;
use netstage_wire::mpls;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Read timeout of a request, and write timeout of a response. The latter is long because an operator may
/// page through it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of concurrent requests, and of bytes in a request.
const MAX_REQUESTS: usize = 16;
const MAX_REQUEST_BYTES: u64 = 1 << 16;

/// Request of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RouterControlRequest {
    Show,
    Routes(RouteFilter),
    /// All labels, or one.
    Labels(Option<u32>),
    Reload,
}

/// Line of a response.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ResponseLine<T> {
    Item(T),
    /// End of the response.
    End,
    /// Error response, with the reason.
    Refused(String),
}

/// State shared by the request threads.
#[derive(Debug)]
pub(super) struct ControlState {
    pub orders: RouterCommandSender,
    pub rsvp: Option<RsvpCommands>,
    pub bfd: Option<BfdQuery>,
    pub loaded: RouterConfigurationFile,
}

/// Serves until a signal arrives or forwarding fails.
pub(super) fn serve(
    socket: &mut ControlSocket,
    signals: &Signals,
    answering: &Arc<ControlState>,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let listener = socket.std_listener()?;
    let active = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [signals.as_fd(), listener.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::from(500_u16))?;
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if is_ready(&fds[0]) {
            if !signals.wait()? {
                return Ok(());
            }
            // The result is logged.
            let _ = answering.loaded.reload(&answering.orders);
        }
        if is_over() {
            return Err(io::Error::other("forwarding has ended unexpectedly"));
        }
        if !is_ready(&fds[1]) {
            continue;
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        if active.fetch_add(1, Ordering::Relaxed) >= MAX_REQUESTS {
            active.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (answering, active) = (Arc::clone(answering), Arc::clone(&active));
        let answer = move || {
            // An error means that the client has disconnected.
            let _ = answering.answer(stream);
            active.fetch_sub(1, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("router-control".into()).spawn(answer)?;
    }
}

impl ControlState {
    fn answer(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(&stream).take(MAX_REQUEST_BYTES).read_line(&mut line)?;
        let mut to = BufWriter::new(stream);
        let result = match serde_json::from_str(&line) {
            Ok(request) => self.respond(&request, &mut to)?,
            Err(error) => Err(format!("invalid request: {error}")),
        };
        write(&mut to, &result.map_or_else(ResponseLine::<()>::Refused, |()| ResponseLine::End))?;
        to.flush()
    }

    fn respond(
        &self,
        request: &RouterControlRequest,
        to: &mut impl io::Write,
    ) -> io::Result<Result<(), String>> {
        let ending = || Err("the router is shutting down".to_owned());
        match request {
            RouterControlRequest::Show => {
                let Some(state) = self.show() else { return Ok(ending()) };
                write(to, &ResponseLine::Item(state))?;
            }
            RouterControlRequest::Routes(RouteFilter { table: Some(table), .. })
                if !self.loaded.has_table(table) =>
            {
                return Ok(Err(format!(
                    "the router has no table `{table}`; use `main` or the name of a VPN"
                )));
            }
            RouterControlRequest::Routes(filter) => {
                let result = self.each_route(filter, &mut |route| write(to, &ResponseLine::Item(route)))?;
                return Ok(result.map_or_else(ending, Ok));
            }
            RouterControlRequest::Labels(one) => {
                let result = self.each_label(*one, &mut |label| write(to, &ResponseLine::Item(label)))?;
                return Ok(result.map_or_else(ending, Ok));
            }
            RouterControlRequest::Reload => match self.loaded.reload(&self.orders) {
                Ok(changes) => {
                    changes.into_iter().try_for_each(|change| write(to, &ResponseLine::Item(change)))?
                }
                Err(error) => return Ok(Err(error.to_string())),
            },
        }
        Ok(Ok(()))
    }

    /// Returns the state, or `None` after the end.
    pub fn show(&self) -> Option<RouterState> {
        let mut state = self.orders.ask(super::forward::RouterCommand::Show)?;
        if let Some(found) = self.rsvp.as_ref().and_then(netstage_routing::rsvp::snapshot) {
            state.lsps = found.lsps.iter().map(rsvp::lsp_state).collect();
            state.counters.extend(rsvp::counters(&found.counters, &found.authentication));
        }
        if let Some((sessions, counters)) = self.bfd.as_ref().and_then(BfdQuery::ask) {
            state.bfd = sessions;
            state.counters.extend(counters);
        }
        Some(self.loaded.complete(state))
    }

    /// Calls `each` for every matching route. Returns `None` after the end of the router.
    pub fn each_route<E>(
        &self,
        filter: &RouteFilter,
        each: &mut dyn FnMut(RouteState) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        let mut query = RouteQuery { filter: filter.clone(), after: None };
        loop {
            let page = self.orders.ask(|to| super::forward::RouterCommand::Routes(query.clone(), to));
            let Some(page) = page else { return Ok(None) };
            page.routes.into_iter().try_for_each(&mut *each)?;
            match page.after {
                Some(after) => query.after = Some(after),
                None => return Ok(Some(())),
            }
        }
    }

    /// Calls `each` for every label, or one. Returns `None` after the end of the router.
    pub fn each_label<E>(
        &self,
        one: Option<u32>,
        each: &mut dyn FnMut(LabelState) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        let number = |number: u32| mpls::LabelValue::new(number).unwrap_or(mpls::LabelValue::MAX);
        let last = number(one.unwrap_or(u32::MAX));
        let mut next = Some(number(one.unwrap_or(0)));
        while let Some(first) = next {
            let query = LabelQuery { first, last };
            let page = self.orders.ask(|to| super::forward::RouterCommand::Labels(query, to));
            let Some(page) = page else { return Ok(None) };
            page.labels.into_iter().try_for_each(&mut *each)?;
            next = page.next;
        }
        Ok(Some(()))
    }
}

fn write(to: &mut impl io::Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, answer).map_err(io::Error::other)?;
    to.write_all(b"\n")
}

/// Requests the state of a router.
pub fn query(socket: &Path) -> io::Result<RouterState> {
    let mut state = None;
    request(socket, &RouterControlRequest::Show, &mut |received: RouterState| {
        state = Some(received);
        Ok(())
    })?;
    state.ok_or_else(|| io::Error::other("empty response from the router"))
}

/// Requests routes of a router and calls `each` for each one as it arrives.
pub fn routes(
    socket: &Path,
    filter: &RouteFilter,
    each: &mut dyn FnMut(RouteState) -> io::Result<()>,
) -> io::Result<()> {
    request(socket, &RouterControlRequest::Routes(filter.clone()), each)
}

/// Requests the labels of a router, or one of them.
pub fn labels(
    socket: &Path,
    one: Option<u32>,
    each: &mut dyn FnMut(LabelState) -> io::Result<()>,
) -> io::Result<()> {
    request(socket, &RouterControlRequest::Labels(one), each)
}

/// Makes a router reread its configuration and its file of routes. Returns the changes. Errors in the files
/// have the kind [`io::ErrorKind::InvalidInput`].
pub fn reload(socket: &Path) -> io::Result<Vec<String>> {
    let mut changes = Vec::new();
    request(socket, &RouterControlRequest::Reload, &mut |change| {
        changes.push(change);
        Ok(())
    })?;
    Ok(changes)
}

fn request<T: DeserializeOwned>(
    socket: &Path,
    request: &RouterControlRequest,
    each: &mut dyn FnMut(T) -> io::Result<()>,
) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT * 6))?;
    write(&mut stream, request)?;
    for line in BufReader::new(stream).lines() {
        match serde_json::from_str(&line?).map_err(io::Error::other)? {
            ResponseLine::Item(item) => each(item)?,
            ResponseLine::End => return Ok(()),
            ResponseLine::Refused(why) => return Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the router closed the connection before the end of the response",
    ))
}
