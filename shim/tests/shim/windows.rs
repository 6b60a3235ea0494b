//! Flow-controlled streams, many on one connection.

use std::fs;

use berth_proto::shim::{
    AttachInput, AttachOutput, AttachStart, ExecStart, StateRequest, StateResponse, attach_input::What,
    attach_output, shim_service,
};
use berth_proto::ttrpc::{Code, Status};

use crate::harness::{Conn, Pod, Spec, Task, World, process, until};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("an_unread_exec_holds_up_itself_alone", EVERY, an_unread_exec_holds_up_itself_alone),
    ("what_a_process_left_waits_for_its_client", REAL, what_a_process_left_waits_for_its_client),
    ("input_beyond_the_window_ends_its_stream_alone", FAKE, input_beyond_the_window_ends_its_stream_alone),
    ("input_that_is_not_read_is_bounded", FAKE, input_that_is_not_read_is_bounded),
    ("input_that_is_read_goes_on_and_on", EVERY, input_that_is_read_goes_on_and_on),
    ("a_slow_looker_on_is_dropped_alone", FAKE, a_slow_looker_on_is_dropped_alone),
    ("a_cancelled_exec_is_killed", REAL, a_cancelled_exec_is_killed),
    ("a_cancelled_attach_leaves_the_container", EVERY, a_cancelled_attach_leaves_the_container),
    ("a_cancelled_attach_ends_stdin_once", EVERY, a_cancelled_attach_ends_stdin_once),
    ("a_thousand_come_and_go_on_one_connection", FAKE, a_thousand_come_and_go_on_one_connection),
];

/// What the shim grants of input at first.
const INPUT_WINDOW: usize = 64 << 10;

fn sleeper<'s>(pod: &'s Pod<'_>) -> Task<'s> {
    Task::start(&pod.shim, "c1", Spec::sh("echo ready; exec sleep 1000"))
}

fn exec(conn: &mut Conn, script: &str, window: u64) -> u32 {
    let start = ExecStart {
        container_id: "c1".to_owned(),
        process: serde_json::to_vec(&process(&["/bin/busybox", "sh", "-c", script])).unwrap(),
        stdin: true,
        ..ExecStart::default()
    };
    begin(conn, shim_service::EXEC, What::Exec(start), window)
}

fn attach(conn: &mut Conn, window: u64) -> u32 {
    let start = AttachStart { container_id: "c1".to_owned(), stdin: true, stdout: true, stderr: true };
    begin(conn, shim_service::ATTACH, What::Attach(start), window)
}

fn begin(conn: &mut Conn, method: &str, first: What, window: u64) -> u32 {
    let stream = conn.stream(shim_service::NAME, method);
    conn.send(stream, &AttachInput { what: Some(first), window });
    stream
}

/// Grants output, if the end of the stream was not read with what others say.
fn grant(conn: &mut Conn, stream: u32, window: usize) {
    if conn.is_open(stream) {
        let window = u64::try_from(window).unwrap();
        conn.send(stream, &AttachInput { what: None, window });
    }
}

fn write(conn: &mut Conn, stream: u32, bytes: &[u8]) {
    conn.send(stream, &AttachInput::from(What::Stdin(bytes.to_vec())));
}

/// That the shim serves this connection, and has handled all that was sent on it.
fn serves(conn: &mut Conn) {
    let state: StateResponse = conn.call(shim_service::NAME, shim_service::STATE, &StateRequest {}).unwrap();
    assert_eq!(state.protocol_version, berth_proto::SHIM_PROTOCOL);
}

/// What has come of a stream.
#[derive(Default)]
struct Heard {
    stdout: Vec<u8>,
    granted: usize,
    code: Option<u32>,
}

impl Heard {
    /// Takes the next message; whether there was one.
    fn next(&mut self, conn: &mut Conn, stream: u32) -> Result<bool, Status> {
        let Some(AttachOutput { what, window }) = conn.receive(stream)? else { return Ok(false) };
        self.granted += usize::try_from(window).unwrap_or(usize::MAX);
        match what {
            Some(attach_output::What::Stdout(bytes)) => self.stdout.extend(bytes),
            Some(attach_output::What::ExitCode(code)) => self.code = Some(code),
            Some(attach_output::What::Stderr(_)) => panic!("nothing is written there"),
            None => assert!(window > 0, "a message says something"),
        }
        Ok(true)
    }

    /// Reads to the end, granting what was read.
    fn finish(mut self, conn: &mut Conn, stream: u32) -> Heard {
        let mut read = self.stdout.len();
        while self.next(conn, stream).unwrap() {
            if self.stdout.len() > read && self.code.is_none() {
                grant(conn, stream, self.stdout.len() - read);
                read = self.stdout.len();
            }
        }
        self
    }

    /// Reads until so much was written.
    fn reads(&mut self, conn: &mut Conn, stream: u32, bytes: usize) {
        while self.stdout.len() < bytes {
            assert!(self.next(conn, stream).unwrap(), "it goes on");
        }
    }

    /// Reads until the shim has granted so much.
    fn is_granted(&mut self, conn: &mut Conn, stream: u32, bytes: usize) {
        while self.granted < bytes {
            assert!(self.next(conn, stream).unwrap(), "it goes on");
        }
    }
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|number| format!("{number}\n")).collect::<String>().into_bytes()
}

fn an_unread_exec_holds_up_itself_alone(world: &World) {
    const WINDOW: u64 = 10_000;
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let mut conn = Conn::open(&pod.agent_socket);
    let said = world.shared().join("said");
    let script = format!("seq 0 299999; : >{}", world.shared_path("said"));
    let stuck = exec(&mut conn, &script, WINDOW);
    let mut of_stuck = Heard::default();
    of_stuck.reads(&mut conn, stuck, usize::try_from(WINDOW).unwrap());
    let others: Vec<u32> = (0..10).map(|_| exec(&mut conn, "seq 0 49999; exit 4", WINDOW)).collect();
    for other in others {
        let heard = Heard::default().finish(&mut conn, other);
        assert_eq!(heard.code, Some(4));
        assert!(heard.stdout == numbers(50_000), "not a byte is lost, added or moved");
    }
    serves(&mut conn);
    assert_eq!(of_stuck.stdout.len(), usize::try_from(WINDOW).unwrap(), "no more than was granted");
    assert!(!said.exists(), "who is not read waits");
    grant(&mut conn, stuck, usize::try_from(WINDOW).unwrap());
    let heard = of_stuck.finish(&mut conn, stuck);
    assert!(heard.stdout == numbers(300_000), "not a byte is lost, added or moved");
    assert_eq!(heard.code, Some(0));
    assert!(said.exists());
}

fn what_a_process_left_waits_for_its_client(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = exec(&mut conn, "seq 0 999; exit 3", 100);
    let mut heard = Heard::default();
    heard.reads(&mut conn, stream, 100);
    until("the end of the process", || (task.pids().unwrap().len() == 1).then_some(()));
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    serves(&mut conn);
    grant(&mut conn, stream, 1_000);
    heard.reads(&mut conn, stream, 1_100);
    grant(&mut conn, stream, 1_000_000);
    let heard = heard.finish(&mut conn, stream);
    assert!(heard.stdout == numbers(1000));
    assert_eq!(heard.code, Some(3));
    serves(&mut conn);
}

fn input_beyond_the_window_ends_its_stream_alone(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let mut conn = Conn::open(&pod.agent_socket);
    let (bad, good) = (exec(&mut conn, "exec sleep 1000", 1000), exec(&mut conn, "cat; exit 6", 1000));
    let mut heard = Heard::default();
    heard.is_granted(&mut conn, bad, INPUT_WINDOW);
    assert_eq!(heard.granted, INPUT_WINDOW);
    for len in [INPUT_WINDOW / 2, INPUT_WINDOW * 4] {
        write(&mut conn, bad, &vec![b'x'; len]);
    }
    let failure = loop {
        match heard.next(&mut conn, bad) {
            Ok(true) => {}
            other => break other.map(drop).unwrap_err(),
        }
    };
    assert_eq!(failure.code, Code::ResourceExhausted);
    assert!(failure.message.contains("beyond"), "{failure}");
    write(&mut conn, good, b"through");
    conn.send(good, &AttachInput::from(What::CloseStdin(true)));
    let heard = Heard::default().finish(&mut conn, good);
    assert_eq!((heard.stdout.as_slice(), heard.code), (b"through".as_slice(), Some(6)));
}

fn input_that_is_not_read_is_bounded(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = exec(&mut conn, "echo begun; exec sleep 1000", 1000);
    let mut heard = Heard::default();
    heard.reads(&mut conn, stream, 6);
    heard.is_granted(&mut conn, stream, INPUT_WINDOW);
    let mut sent = 0;
    while sent < heard.granted {
        for _ in 0..(heard.granted - sent) / 1024 {
            write(&mut conn, stream, &[b'x'; 1024]);
            sent += 1024;
        }
        // What it grants for that has come with the answer.
        serves(&mut conn);
        while conn.has_heard(stream) {
            heard.next(&mut conn, stream).unwrap();
        }
        assert!(heard.granted <= 5 * INPUT_WINDOW, "{} bytes were granted", heard.granted);
    }
    conn.cancel(stream);
}

fn input_that_is_read_goes_on_and_on(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = exec(&mut conn, "cat", 1 << 20);
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| u8::try_from(at * 31 % 251).unwrap()).collect();
    let (mut heard, mut sent, mut read) = (Heard::default(), 0, 0);
    while sent < bytes.len() {
        let piece = (heard.granted - sent).min(bytes.len() - sent).min(10_000);
        if piece > 0 {
            write(&mut conn, stream, &bytes[sent..sent + piece]);
            sent += piece;
        } else {
            assert!(heard.next(&mut conn, stream).unwrap());
        }
        if heard.stdout.len() > read {
            grant(&mut conn, stream, heard.stdout.len() - read);
            read = heard.stdout.len();
        }
    }
    conn.send(stream, &AttachInput::from(What::CloseStdin(true)));
    let heard = heard.finish(&mut conn, stream);
    assert_eq!(heard.code, Some(0));
    assert!(heard.stdout == bytes, "what comes out is what went in");
}

fn a_slow_looker_on_is_dropped_alone(world: &World) {
    let pod = Pod::start(world);
    let said = world.dir().join("said");
    let script =
        format!("read line; head -c 20000000 /dev/zero | tr '\\0' x; : >{}; exec sleep 1000", said.display());
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "attach:", "").unwrap();
    task.begin().unwrap();
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = attach(&mut conn, 1000);
    Heard::default().is_granted(&mut conn, stream, INPUT_WINDOW);
    write(&mut conn, stream, b"go\n");
    until("all to be said", || said.exists().then_some(()));
    let mut heard = Heard::default();
    let failure = loop {
        match heard.next(&mut conn, stream) {
            Ok(true) => {}
            other => break other.map(drop).unwrap_err(),
        }
    };
    assert!(failure.message.contains("more slowly"), "{failure}");
    assert_eq!(heard.stdout.len(), 1000, "no more than was granted");
    serves(&mut conn);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
    assert_eq!(task.log.text("stdout").len(), 20_000_000);
}

fn a_cancelled_exec_is_killed(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    task.log.says("ready");
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = exec(&mut conn, "echo begun; exec sleep 1000", 1000);
    Heard::default().reads(&mut conn, stream, 6);
    conn.cancel(stream);
    until("the end of the exec", || (task.pids().unwrap().len() == 1).then_some(()));
    serves(&mut conn);
}

/// A container that repeats what is typed, until its input ends.
fn echoing<'s>(pod: &'s Pod<'_>, stdin: &str) -> Task<'s> {
    let script = "echo ready; while read line; do echo got $line; done; exit 6";
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(script), stdin, "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    task
}

/// Attaches, says a word, hears it and nothing of before, and goes.
fn comes_and_goes(conn: &mut Conn, word: &str) {
    let stream = attach(conn, 1000);
    let mut heard = Heard::default();
    heard.is_granted(conn, stream, INPUT_WINDOW);
    write(conn, stream, format!("{word}\n").as_bytes());
    let expected = format!("got {word}\n");
    heard.reads(conn, stream, expected.len());
    assert_eq!(String::from_utf8(heard.stdout).unwrap(), expected);
    conn.cancel(stream);
}

fn a_cancelled_attach_leaves_the_container(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:");
    let mut conn = Conn::open(&pod.agent_socket);
    let other = attach(&mut conn, 1000);
    for word in ["one", "two", "three"] {
        comes_and_goes(&mut conn, word);
    }
    conn.send(other, &AttachInput::from(What::CloseStdin(true)));
    let heard = Heard::default().finish(&mut conn, other);
    assert_eq!(String::from_utf8(heard.stdout).unwrap(), "got one\ngot two\ngot three\n");
    assert_eq!(heard.code, Some(6));
    assert_eq!(task.wait(), 6);
}

fn a_cancelled_attach_ends_stdin_once(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:?once=true");
    let mut conn = Conn::open(&pod.agent_socket);
    comes_and_goes(&mut conn, "one");
    assert_eq!(task.wait(), 6, "its input has ended");
    serves(&mut conn);
}

fn a_thousand_come_and_go_on_one_connection(world: &World) {
    let pod = Pod::start(world);
    let script = "while read line; do echo got $line; done";
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(script), "attach:", "").unwrap();
    task.begin().unwrap();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    let resident = || {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", pod.shim.pid)).unwrap();
        let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let mut conn = Conn::open(&pod.agent_socket);
    let mut cycles = |count: usize| {
        for _ in 0..count {
            let stream = attach(&mut conn, 1000);
            let mut heard = Heard::default();
            heard.is_granted(&mut conn, stream, INPUT_WINDOW);
            write(&mut conn, stream, b"x\n");
            heard.reads(&mut conn, stream, 6);
            conn.cancel(stream);
        }
        serves(&mut conn);
    };
    cycles(100);
    let before = (descriptors(), resident());
    cycles(1000);
    assert_eq!(descriptors(), before.0);
    let grown = resident().saturating_sub(before.1);
    assert!(grown < 200, "the shim grew by {grown} KiB");
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
}
