//! The control socket, which only the router's user may open: one request, a line of JSON, and what it is
//! answered, a line for each thing told. Nothing is held whole that may be large.

use super::forward::Orders;
use super::reload::Loaded;
use super::state::{Label, LabelQuery, Route, RouteFilter, RouteQuery, State};
use netstage_host::signals::Signals;
use netstage_host::socket::Socket;
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

/// Who does not ask for so long is not waited for, nor who does not read on: somebody may page through it.
const PATIENCE: Duration = Duration::from_secs(5);
const PAGING: Duration = Duration::from_secs(600);
/// Who are answered at once, and bytes of a request.
const MOST_ASKING: usize = 16;
const MOST_BYTES: u64 = 1 << 16;

/// What can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    Show,
    Routes(RouteFilter),
    /// All, or one.
    Labels(Option<u32>),
    Reload,
}

/// A line of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer<T> {
    Told(T),
    /// That was all.
    End,
    /// Why there is no answer.
    Refused(String),
}

/// What the threads that answer share.
#[derive(Debug)]
pub(super) struct Answering {
    pub orders: Orders,
    pub loaded: Loaded,
}

/// Serves until a signal comes, or forwarding ends by itself.
pub(super) fn serve(
    socket: &mut Socket,
    signals: &Signals,
    answering: &Arc<Answering>,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let listener = socket.std_listener()?;
    let asking = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [signals.as_fd(), listener.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::from(500_u16))?;
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if is_ready(&fds[0]) {
            if !signals.wait()? {
                return Ok(());
            }
            // What it says goes to the log.
            let _ = answering.loaded.reload(&answering.orders);
        }
        if is_over() {
            return Err(io::Error::other("forwarding has ended by itself"));
        }
        if !is_ready(&fds[1]) {
            continue;
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        if asking.fetch_add(1, Ordering::Relaxed) >= MOST_ASKING {
            asking.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (answering, asked) = (Arc::clone(answering), Arc::clone(&asking));
        let answer = move || {
            // Who has gone meanwhile needs no answer.
            let _ = answering.answer(stream);
            asked.fetch_sub(1, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("router-control".into()).spawn(answer)?;
    }
}

impl Answering {
    fn answer(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PAGING))?;
        let mut line = String::new();
        BufReader::new(&stream).take(MOST_BYTES).read_line(&mut line)?;
        let mut to = BufWriter::new(stream);
        let told = match serde_json::from_str(&line) {
            Ok(request) => self.tell(&request, &mut to)?,
            Err(error) => Err(format!("the request is not understood: {error}")),
        };
        write(&mut to, &told.map_or_else(Answer::<()>::Refused, |()| Answer::End))?;
        to.flush()
    }

    fn tell(&self, request: &Request, to: &mut impl io::Write) -> io::Result<Result<(), String>> {
        let ending = || Err("the router is ending".to_owned());
        match request {
            Request::Show => {
                let Some(state) = self.show() else { return Ok(ending()) };
                write(to, &Answer::Told(state))?;
            }
            Request::Routes(RouteFilter { table: Some(table), .. }) if !self.loaded.has_table(table) => {
                return Ok(Err(format!("the router has no table `{table}`: name a VPN, or `main`")));
            }
            Request::Routes(filter) => {
                let told = self.each_route(filter, &mut |route| write(to, &Answer::Told(route)))?;
                return Ok(told.map_or_else(ending, Ok));
            }
            Request::Labels(one) => {
                let told = self.each_label(*one, &mut |label| write(to, &Answer::Told(label)))?;
                return Ok(told.map_or_else(ending, Ok));
            }
            Request::Reload => match self.loaded.reload(&self.orders) {
                Ok(changes) => changes.into_iter().try_for_each(|change| write(to, &Answer::Told(change)))?,
                Err(error) => return Ok(Err(error.to_string())),
            },
        }
        Ok(Ok(()))
    }

    /// How it stands; none after the end.
    pub fn show(&self) -> Option<State> {
        let state = self.orders.ask(super::forward::Order::Show)?;
        Some(self.loaded.complete(state))
    }

    /// Gives each route that is wanted; none after the end.
    pub fn each_route<E>(
        &self,
        filter: &RouteFilter,
        each: &mut dyn FnMut(Route) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        let mut query = RouteQuery { filter: filter.clone(), after: None };
        loop {
            let page = self.orders.ask(|to| super::forward::Order::Routes(query.clone(), to));
            let Some(page) = page else { return Ok(None) };
            page.routes.into_iter().try_for_each(&mut *each)?;
            match page.after {
                Some(after) => query.after = Some(after),
                None => return Ok(Some(())),
            }
        }
    }

    /// Gives each label, or one; none after the end.
    pub fn each_label<E>(
        &self,
        one: Option<u32>,
        each: &mut dyn FnMut(Label) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        let number = |number: u32| mpls::Label::new(number).unwrap_or(mpls::Label::MAX);
        let last = number(one.unwrap_or(u32::MAX));
        let mut next = Some(number(one.unwrap_or(0)));
        while let Some(first) = next {
            let query = LabelQuery { first, last };
            let page = self.orders.ask(|to| super::forward::Order::Labels(query, to));
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

/// Asks a router how it stands.
pub fn ask(socket: &Path) -> io::Result<State> {
    let mut state = None;
    request(socket, &Request::Show, &mut |told: State| {
        state = Some(told);
        Ok(())
    })?;
    state.ok_or_else(|| io::Error::other("the router told nothing"))
}

/// Asks a router for its routes, each of which is given as it comes.
pub fn routes(
    socket: &Path,
    filter: &RouteFilter,
    each: &mut dyn FnMut(Route) -> io::Result<()>,
) -> io::Result<()> {
    request(socket, &Request::Routes(filter.clone()), each)
}

/// Asks a router for its labels, or for one of them.
pub fn labels(
    socket: &Path,
    one: Option<u32>,
    each: &mut dyn FnMut(Label) -> io::Result<()>,
) -> io::Result<()> {
    request(socket, &Request::Labels(one), each)
}

/// Has a router read its configuration and its file of routes again: what has changed. What is wrong with
/// them is an error of kind [`io::ErrorKind::InvalidInput`].
pub fn reload(socket: &Path) -> io::Result<Vec<String>> {
    let mut changes = Vec::new();
    request(socket, &Request::Reload, &mut |change| {
        changes.push(change);
        Ok(())
    })?;
    Ok(changes)
}

fn request<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    each: &mut dyn FnMut(T) -> io::Result<()>,
) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE * 6))?;
    write(&mut stream, request)?;
    for line in BufReader::new(stream).lines() {
        match serde_json::from_str(&line?).map_err(io::Error::other)? {
            Answer::Told(told) => each(told)?,
            Answer::End => return Ok(()),
            Answer::Refused(why) => return Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the router has ended before it told all"))
}
