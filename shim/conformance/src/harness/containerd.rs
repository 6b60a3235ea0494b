//! containerd's events service, which records what it is sent.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use berth_proto::event_service::{ForwardRequest, events_service};
use berth_proto::events::{
    TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOom, TaskStart,
};
use berth_proto::ttrpc::{Event, Server, Status};
use berth_proto::{Any, types::Envelope, unpack};

use nix::sys::socket::{Shutdown, shutdown};

use super::wait::WITHIN;

/// An event, short enough to compare: its topic's last part, the container, and the exec where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The last part, such as `exit`.
    pub topic: String,
    /// The container.
    pub container: String,
    /// The exec, or nothing.
    pub exec: String,
    /// The process, where the event names one.
    pub pid: u32,
    /// The exit code, where the event has one.
    pub code: u32,
}

impl Recorded {
    /// `topic container[/exec]`.
    pub fn brief(&self) -> String {
        let Recorded { topic, container, exec, .. } = self;
        if exec.is_empty() { format!("{topic} {container}") } else { format!("{topic} {container}/{exec}") }
    }
}

#[derive(Debug)]
struct Log {
    /// The containerd namespace that events must carry.
    namespace: String,
    events: Mutex<Vec<Recorded>>,
    changed: Condvar,
    /// Everything that is open: the listener's and the connections' descriptors.
    open: Mutex<Vec<OwnedFd>>,
}

/// The events service.
#[derive(Debug)]
pub struct Containerd {
    socket: PathBuf,
    log: Arc<Log>,
}

impl Containerd {
    /// Listens until the process ends.
    pub fn listen(dir: &Path, namespace: &str) -> Containerd {
        let socket = dir.join("containerd.sock.ttrpc");
        let log = Log {
            namespace: namespace.to_owned(),
            events: Mutex::default(),
            changed: Condvar::new(),
            open: Mutex::default(),
        };
        let containerd = Containerd { socket, log: Arc::new(log) };
        containerd.relisten();
        containerd
    }

    /// Listens again after the socket was removed, as containerd does when it restarts.
    pub fn relisten(&self) {
        let listener = UnixListener::bind(&self.socket).unwrap();
        let log = Arc::clone(&self.log);
        log.open.lock().unwrap().push(listener.try_clone().unwrap().into());
        std::thread::spawn(move || {
            // Ends when the listener is shut down.
            while let Ok((connection, _)) = listener.accept() {
                let log = Arc::clone(&log);
                log.open.lock().unwrap().push(connection.try_clone().unwrap().into());
                std::thread::spawn(move || serve(connection, &log));
            }
        });
    }

    /// Closes everything, as containerd does when it is killed.
    pub fn go_away(&self) {
        for open in self.log.open.lock().unwrap().drain(..) {
            // A connection whose other end has gone is closed already.
            let _closed = shutdown(open.as_raw_fd(), Shutdown::Both).is_err();
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it was told so far.
    pub fn events(&self) -> Vec<Recorded> {
        self.log.events.lock().unwrap().clone()
    }

    /// Waits until the events satisfy `enough` and returns them.
    pub fn events_until(&self, what: &str, enough: impl Fn(&[Recorded]) -> bool) -> Vec<Recorded> {
        let give_up = Instant::now() + WITHIN;
        let mut events = self.log.events.lock().unwrap();
        while !enough(&events) {
            let left = give_up.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no sign of {what} within {WITHIN:?}, only {events:#?}");
            events = self.log.changed.wait_timeout(events, left).unwrap().0;
        }
        events.clone()
    }

    /// Waits for the event whose brief form is `last` and returns what was told of its container.
    pub fn events_of(&self, container: &str, last: &str) -> Vec<Recorded> {
        let events = self.events_until(last, |events| events.iter().any(|event| event.brief() == last));
        events.into_iter().filter(|event| event.container == container).collect()
    }

    /// Waits for the first event whose brief form is `brief`.
    pub fn event(&self, brief: &str) -> Recorded {
        let is_it = |event: &Recorded| event.brief() == brief;
        let events = self.events_until(brief, |events| events.iter().any(is_it));
        events.into_iter().find(is_it).unwrap()
    }
}

/// Serves one connection until its other end goes.
fn serve(mut connection: UnixStream, log: &Log) {
    let mut server = Server::default();
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = connection.read(&mut buffer) {
        server.feed(&buffer[..len]);
        while let Some(event) = server.poll() {
            let Event::Call { stream, request, .. } = event else { panic!("unexpected {event:?}") };
            let known = request.service == events_service::NAME && request.method == events_service::FORWARD;
            let result = if known {
                request.message().map(|request: ForwardRequest| record(log, request.envelope.unwrap()))
            } else {
                Err(Status::unimplemented(&request.service, &request.method))
            };
            server.respond(stream, result.map(|()| Vec::new()));
        }
        if connection.write_all(&server.output().take()).is_err() {
            return;
        }
    }
}

fn record(log: &Log, envelope: Envelope) {
    assert_eq!(envelope.namespace, log.namespace);
    assert!(envelope.timestamp.is_some(), "an event without a time: {envelope:?}");
    let topic = envelope.topic.strip_prefix("/tasks/").unwrap_or(&envelope.topic).to_owned();
    let recorded = describe(topic, &envelope.event.unwrap());
    log.events.lock().unwrap().push(recorded);
    log.changed.notify_all();
}

fn describe(topic: String, event: &Any) -> Recorded {
    let base = |container: String| Recorded {
        topic: topic.clone(),
        container,
        exec: String::new(),
        pid: 0,
        code: 0,
    };
    if let Ok(TaskCreate { container_id, pid, .. }) = unpack(event) {
        return Recorded { pid, ..base(container_id) };
    }
    if let Ok(TaskStart { container_id, pid }) = unpack(event) {
        return Recorded { pid, ..base(container_id) };
    }
    if let Ok(TaskExit { container_id, id, pid, exit_status, exited_at }) = unpack(event) {
        assert!(exited_at.is_some(), "an exit without a time");
        let exec = if id == container_id { String::new() } else { id };
        return Recorded { exec, pid, code: exit_status, ..base(container_id) };
    }
    if let Ok(TaskDelete { container_id, id, pid, exit_status, .. }) = unpack(event) {
        let exec = if id == container_id { String::new() } else { id };
        return Recorded { exec, pid, code: exit_status, ..base(container_id) };
    }
    if let Ok(TaskExecAdded { container_id, exec_id }) = unpack(event) {
        return Recorded { exec: exec_id, ..base(container_id) };
    }
    if let Ok(TaskExecStarted { container_id, exec_id, pid }) = unpack(event) {
        return Recorded { exec: exec_id, pid, ..base(container_id) };
    }
    if let Ok(TaskOom { container_id }) = unpack(event) {
        return base(container_id);
    }
    if let Ok(berth_proto::events::TaskPaused { container_id }) = unpack(event) {
        return base(container_id);
    }
    if let Ok(berth_proto::events::TaskResumed { container_id }) = unpack(event) {
        return base(container_id);
    }
    if let Ok(berth_proto::events::TaskCheckpointed { container_id, .. }) = unpack(event) {
        return base(container_id);
    }
    panic!("an event of an unexpected kind: {}", event.type_url)
}
