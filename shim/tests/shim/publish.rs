//! Events for a containerd that answers badly: each arrives, in order, and once where that can be known.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use berth_proto::event_service::ForwardRequest;
use berth_proto::ttrpc::{Code, Event, Server, Status};

use crate::harness::{Shim, Spec, Task, WITHIN, World};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("an_answered_event_is_not_sent_again", FAKE, an_answered_event_is_not_sent_again),
    ("an_event_without_an_answer_is_sent_again", FAKE, an_event_without_an_answer_is_sent_again),
    ("a_containerd_that_hangs_is_left", FAKE, a_containerd_that_hangs_is_left),
    ("a_refused_event_lets_others_pass", FAKE, a_refused_event_lets_others_pass),
];

/// What the service does with one event.
#[derive(Clone, Copy)]
enum Deed {
    Answer,
    /// Answers and closes the connection at once.
    AnswerAndClose,
    /// Takes it and closes the connection.
    Close,
    /// Takes it, says nothing and stays.
    Hang,
    Refuse,
}

type Heard = Arc<(Mutex<Vec<String>>, Condvar)>;

/// An events service that does what it is told with event after event, and then answers all.
struct Service {
    heard: Heard,
}

impl Service {
    /// Takes the place of the world's own.
    fn instead(world: &World, deeds: &[Deed]) -> Service {
        world.containerd.go_away();
        fs::remove_file(world.containerd.socket()).unwrap();
        let listener = UnixListener::bind(world.containerd.socket()).unwrap();
        let heard = Heard::default();
        let mut deeds: VecDeque<Deed> = deeds.iter().copied().collect();
        let log = Arc::clone(&heard);
        // Ends with the test program.
        std::thread::spawn(move || {
            let mut hung = Vec::new();
            while let Ok((connection, _)) = listener.accept() {
                hung.extend(serve(connection, &mut deeds, &log));
            }
        });
        Service { heard }
    }

    /// Topics, once `last` has come.
    fn until(&self, last: &str) -> Vec<String> {
        let (heard, changed) = &*self.heard;
        let give_up = Instant::now() + WITHIN;
        let mut heard = heard.lock().unwrap();
        while heard.last().is_none_or(|topic| topic != last) {
            let left = give_up.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {last} within {WITHIN:?}, only {heard:?}");
            heard = changed.wait_timeout(heard, left).unwrap().0;
        }
        heard.clone()
    }
}

/// Serves one connection; returns it if it is to stay open without a word.
fn serve(mut connection: UnixStream, deeds: &mut VecDeque<Deed>, log: &Heard) -> Option<UnixStream> {
    let mut server = Server::default();
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = connection.read(&mut buffer) {
        server.feed(&buffer[..len]);
        while let Some(event) = server.poll() {
            let Event::Call { stream, request, .. } = event else { panic!("unexpected {event:?}") };
            let Ok(ForwardRequest { envelope: Some(envelope) }) = request.message() else {
                panic!("not an event: {request:?}")
            };
            log.0.lock().expect("no test panics with it").push(envelope.topic.replace("/tasks/", ""));
            log.1.notify_all();
            let deed = deeds.pop_front().unwrap_or(Deed::Answer);
            match deed {
                Deed::Answer | Deed::AnswerAndClose => server.respond(stream, Ok(Vec::new())),
                Deed::Refuse => server.respond(stream, Err(Status::new(Code::Internal, "no"))),
                Deed::Close => return None,
                Deed::Hang => return Some(connection),
            }
            connection.write_all(&server.output().take()).ok()?;
            if matches!(deed, Deed::AnswerAndClose) {
                return None;
            }
        }
    }
    None
}

/// A task's whole life, seen by a service that misbehaves.
fn life(world: &World, deeds: &[Deed]) -> Vec<String> {
    let spec = Spec::sh("exit 3");
    let shim = Shim::start_plain(world, "c1", &spec);
    let service = Service::instead(world, deeds);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 3, "nobody waits for containerd");
    task.delete().unwrap();
    service.until("delete")
}

fn an_answered_event_is_not_sent_again(world: &World) {
    let heard = life(world, &[Deed::AnswerAndClose; 4]);
    assert_eq!(heard, ["create", "start", "exit", "delete"]);
}

/// Whether it was taken cannot be known: at least once.
fn an_event_without_an_answer_is_sent_again(world: &World) {
    let heard = life(world, &[Deed::Answer, Deed::Close, Deed::Close]);
    assert_eq!(heard, ["create", "start", "start", "start", "exit", "delete"]);
}

fn a_containerd_that_hangs_is_left(world: &World) {
    let heard = life(world, &[Deed::Hang]);
    assert_eq!(heard, ["create", "create", "start", "exit", "delete"]);
}

fn a_refused_event_lets_others_pass(world: &World) {
    let heard = life(world, &[Deed::Refuse; 5]);
    assert_eq!(heard, ["create", "create", "create", "create", "create", "start", "exit", "delete"]);
}
