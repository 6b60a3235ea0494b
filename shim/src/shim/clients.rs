//! Clients: their connections, what they ask, and the streams that they have with processes.

mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use berth_proto::ttrpc::{Code, Event as Wire, Status};
use berth_shim_core::{Process, ReqId};
use nix::libc;

use super::watches::{Source, Watches};
use crate::call::Call;
use crate::conn::{Conn, Heard, STREAM_PENDING_BYTES_MAX, is_trusted};
use crate::poll::Interest;
use flows::Flow;
pub(super) use flows::Said;

/// Connections at a time: containerd opens one per container of the pod, the agent a few.
const CONNS_MAX: usize = 1024;
/// Requests that are not answered yet, over all connections.
const PENDING_MAX: usize = 16384;

/// A request, until it is answered.
pub(super) struct Pending {
    pub(super) conn: u64,
    pub(super) stream: u32,
    pub(super) call: Call,
}

/// Which process a client's stream belongs to.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) process: Process,
    pub(super) stdin: bool,
}

pub(super) struct Clients {
    listener: UnixListener,
    agent_listener: Option<(UnixListener, PathBuf)>,
    conns: BTreeMap<u64, Conn>,
    pending: BTreeMap<ReqId, Pending>,
    /// Streams whose first message has not come.
    opening: BTreeSet<(u64, u32)>,
    routes: BTreeMap<(u64, u32), Route>,
    flows: BTreeMap<(u64, u32), Flow>,
    /// Connections that had no room for some output.
    throttled: BTreeSet<u64>,
    last_conn: u64,
    last_request: u64,
    /// Who was answered last by what follows from the event that is performed.
    answered: Option<u64>,
    /// Given up for a client to be turned away with.
    spare: Option<File>,
}

/// Connections.
impl Clients {
    pub(super) fn new(listener: UnixListener, watches: &mut Watches) -> nix::Result<Self> {
        watches.add(&listener, Interest::Read, Source::Listener)?;
        Ok(Self {
            listener,
            agent_listener: None,
            conns: BTreeMap::new(),
            pending: BTreeMap::new(),
            opening: BTreeSet::new(),
            routes: BTreeMap::new(),
            flows: BTreeMap::new(),
            throttled: BTreeSet::new(),
            last_conn: 0,
            last_request: 0,
            answered: None,
            spare: open_spare(),
        })
    }

    pub(super) fn accept_all(&mut self, watches: &mut Watches) {
        while let Some(socket) = accept(&self.listener, &mut self.spare) {
            self.add(socket, watches);
        }
    }

    pub(super) fn accept_agents(&mut self, watches: &mut Watches) {
        while let Some((listener, _)) = &self.agent_listener
            && let Some(socket) = accept(listener, &mut self.spare)
        {
            self.add(socket, watches);
        }
    }

    /// Serves on the agent's socket too.
    pub(super) fn listen_for_agent(&mut self, path: &str, watches: &mut Watches) -> Result<(), Status> {
        let fail = |text: String| Status::new(Code::InvalidArgument, format!("failed to {text}"));
        if !path.starts_with('/') {
            return Err(fail(format!("listen on {path:?}: the path is not absolute")));
        }
        let listener: UnixListener =
            crate::start::listen(path.as_ref()).map_err(|error| fail(crate::with_causes(&error)))?;
        let watched = listener.set_nonblocking(true).map_err(|error| error.to_string()).and_then(|()| {
            let added = watches.add(&listener, Interest::Read, Source::AgentListener);
            added.map_err(|error| error.to_string())
        });
        watched.map_err(|error| fail(format!("watch {path}: {error}")))?;
        self.agent_listener = Some((listener, path.into()));
        Ok(())
    }

    pub(super) fn agent_socket(&self) -> Option<&Path> {
        self.agent_listener.as_ref().map(|(_, path)| path.as_path())
    }

    fn add(&mut self, socket: UnixStream, watches: &mut Watches) {
        if self.conns.len() >= CONNS_MAX || !is_trusted(&socket) || socket.set_nonblocking(true).is_err() {
            return;
        }
        let id = self.last_conn + 1;
        let Ok(token) = watches.add(&socket, Interest::Read, Source::Conn(id)) else { return };
        self.last_conn = id;
        self.conns.insert(id, Conn::new(socket, token));
    }

    pub(super) fn are_there(&self) -> bool {
        !self.conns.is_empty()
    }

    pub(super) fn conns(&self) -> Vec<u64> {
        self.conns.keys().copied().collect()
    }

    /// Reads once; `None` when there is no such client any more.
    pub(super) fn read(&mut self, conn: u64, chunk: &mut [u8]) -> Option<Heard> {
        let conn = self.conns.get_mut(&conn)?;
        // A client that is held is not read from, so readiness can only be its end.
        Some(if conn.held { Heard::End } else { conn.read(chunk) })
    }

    /// The next thing that has arrived whole.
    pub(super) fn next(&mut self, conn: u64) -> Option<Wire> {
        self.conns.get_mut(&conn).and_then(Conn::next)
    }

    /// Does not read from a client until it is released.
    pub(super) fn hold(&mut self, conn: u64) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.held = true;
        }
    }

    pub(super) fn release(&mut self, conn: u64) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.held = false;
        }
    }

    pub(super) fn is_held(&self, conn: u64) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.held)
    }

    /// How many streams a client has open; `None` when it is gone.
    pub(super) fn open_streams(&self, conn: u64) -> Option<usize> {
        self.conns.get(&conn).map(|conn| conn.server.open_streams().count())
    }

    /// Whether a connection had no room for output and has some again, which is told once.
    pub(super) fn take_unthrottled(&mut self, conn: u64) -> bool {
        let has_room = |conn: &mut Conn| conn.pending() < STREAM_PENDING_BYTES_MAX / 2;
        self.throttled.contains(&conn)
            && self.conns.get_mut(&conn).is_some_and(has_room)
            && self.throttled.remove(&conn)
    }

    /// An event is about to be performed: nobody has been answered because of it.
    pub(super) fn forget_answered(&mut self) {
        self.answered = None;
    }

    pub(super) fn answered(&self) -> Option<u64> {
        self.answered
    }

    pub(super) fn is_connected(&self, conn: u64) -> bool {
        self.conns.contains_key(&conn)
    }

    /// Whether somebody has not taken everything that was said.
    pub(super) fn has_unsent(&mut self) -> bool {
        self.has_unsent_flows() || self.conns.values_mut().any(|conn| conn.pending() > 0)
    }

    /// Writes what waits; returns whether the client is still there.
    pub(super) fn write(&mut self, conn: u64) -> bool {
        self.conns.get_mut(&conn).is_none_or(Conn::write)
    }

    /// Whether what has arrived waits until the client has taken its answers.
    pub(super) fn is_behind(&self, conn: u64) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.behind)
    }

    /// Watches for what is to be done next; returns whether that can be.
    pub(super) fn watch(&mut self, conn: u64, watches: &Watches) -> bool {
        let Some(conn) = self.conns.get_mut(&conn) else { return true };
        let interest = conn.new_interest();
        interest.is_none_or(|interest| watches.set(&*conn, conn.token, interest).is_ok())
    }

    /// Hangs up on a client; returns whether there was one. Its streams and requests are still to be ended.
    pub(super) fn hang_up(&mut self, id: u64, watches: &mut Watches) -> bool {
        let gone = self.conns.remove(&id);
        if let Some(conn) = &gone {
            watches.end(conn, conn.token);
        }
        self.throttled.remove(&id);
        self.forget_flows(id);
        gone.is_some()
    }
}

/// Requests and answers.
impl Clients {
    /// Notes a request.
    pub(super) fn ask(&mut self, conn: u64, stream: u32, call: Call) -> Result<ReqId, Status> {
        if self.pending.len() >= PENDING_MAX {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("{PENDING_MAX} requests are under way"),
            ));
        }
        self.last_request += 1;
        let id = ReqId(self.last_request);
        self.pending.insert(id, Pending { conn, stream, call });
        Ok(id)
    }

    pub(super) fn request(&self, id: ReqId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    pub(super) fn take_request(&mut self, id: ReqId) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Notes a request again that goes on as a stream.
    pub(super) fn keep_request(&mut self, id: ReqId, pending: Pending) {
        self.pending.insert(id, pending);
    }

    /// Forgets the request of a stream; returns which it was.
    pub(super) fn take_request_of(&mut self, conn: u64, stream: u32) -> Option<ReqId> {
        let is_its = |pending: &Pending| (pending.conn, pending.stream) == (conn, stream);
        let id = self.pending.iter().find(|(_, pending)| is_its(pending)).map(|(id, _)| *id)?;
        self.pending.remove(&id);
        Some(id)
    }

    /// Forgets the oldest request of a client; returns which it was.
    pub(super) fn take_request_from(&mut self, conn: u64) -> Option<ReqId> {
        let id = self.pending.iter().find(|(_, pending)| pending.conn == conn).map(|(id, _)| *id)?;
        self.pending.remove(&id);
        Some(id)
    }

    pub(super) fn respond(&mut self, conn: u64, stream: u32, result: Result<Vec<u8>, Status>) {
        self.forget_flow(conn, stream);
        if let Some(known) = self.conns.get_mut(&conn) {
            known.server.respond(stream, result);
            self.answered = Some(conn);
        }
    }
}

/// Streams.
impl Clients {
    /// A stream begins with its first message.
    pub(super) fn open(&mut self, conn: u64, stream: u32) {
        self.opening.insert((conn, stream));
    }

    /// Whether this is a stream's first message.
    pub(super) fn begins(&mut self, conn: u64, stream: u32) -> bool {
        self.opening.remove(&(conn, stream))
    }

    /// Leads a stream to a process.
    pub(super) fn lead(&mut self, conn: u64, stream: u32, route: Route) {
        self.routes.insert((conn, stream), route);
    }

    pub(super) fn route(&self, conn: u64, stream: u32) -> Option<&Route> {
        self.routes.get(&(conn, stream))
    }

    pub(super) fn take_route(&mut self, conn: u64, stream: u32) -> Option<Route> {
        self.routes.remove(&(conn, stream))
    }

    /// Which streams of a client lead to processes, and to which.
    pub(super) fn routes(&self, conn: u64) -> impl Iterator<Item = (u32, &Route)> {
        self.routes.range((conn, 0)..=(conn, u32::MAX)).map(|((_, stream), route)| (*stream, route))
    }

    /// Forgets the streams of a client that were never begun.
    pub(super) fn forget_opening(&mut self, conn: u64) {
        self.opening.retain(|(other, _)| *other != conn);
    }

    /// Sends one message of a stream; returns the bytes that now wait on the connection.
    fn send(&mut self, conn: u64, stream: u32, message: &[u8]) -> usize {
        let Some(known) = self.conns.get_mut(&conn) else { return 0 };
        // Messages are as long as one read, far below what a frame takes.
        let _too_large = known.server.send(stream, message).is_err();
        let pending = known.pending();
        if pending >= STREAM_PENDING_BYTES_MAX {
            self.throttled.insert(conn);
        }
        pending
    }

    /// Says that a stream is over.
    pub(super) fn finish(&mut self, conn: u64, stream: u32, result: Result<(), Status>) {
        self.forget_flow(conn, stream);
        if let Some(conn) = self.conns.get_mut(&conn) {
            match result {
                Ok(()) => conn.server.finish(stream),
                Err(status) => conn.server.respond(stream, Err(status)),
            }
        }
    }

    /// Lets the client of a process go on that has ended, and says that the stream is over unless something still waits for it.
    fn finish_with_process(&mut self, conn: u64, stream: u32, is_over: bool) {
        self.routes.remove(&(conn, stream));
        if is_over {
            self.finish(conn, stream, Ok(()));
        }
        self.release(conn);
        self.pending.retain(|_, pending| (pending.conn, pending.stream) != (conn, stream));
    }
}

/// The next connection. Where no descriptor is free, the spare one takes it and it is closed: left to wait, it would
/// wake the loop without end.
fn accept(listener: &UnixListener, spare: &mut Option<File>) -> Option<UnixStream> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Some(socket),
            Err(error) if is_without_descriptors(&error) && spare.take().is_some() => {
                // The same is answered where nobody waits.
                let turned_away = listener.accept().is_ok();
                *spare = open_spare();
                if !turned_away {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
}

fn is_without_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A descriptor to have when there is no other.
fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}
