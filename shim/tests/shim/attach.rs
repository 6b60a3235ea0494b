//! Clients on the streams of a running container.

use berth_proto::shim::{
    AttachInput, AttachOutput, AttachStart, StateRequest, StateResponse, attach_input, attach_output,
    shim_service,
};
use berth_proto::ttrpc::Code;

use crate::harness::{Conn, Pod, Spec, Task, World, until};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("clients_come_and_go", EVERY, clients_come_and_go),
    ("fifty_clients_read_the_same", FAKE, fifty_clients_read_the_same),
    ("stdin_once_ends_with_the_first_client", EVERY, stdin_once_ends_with_the_first_client),
    ("close_io_ends_stdin", EVERY, close_io_ends_stdin),
    ("a_client_that_does_not_read_holds_nobody_up", EVERY, a_client_that_does_not_read_holds_nobody_up),
    ("a_client_that_was_dropped_is_still_answered", FAKE, a_client_that_was_dropped_is_still_answered),
    ("attach_needs_a_container", FAKE, attach_needs_a_container),
    ("an_ended_container_is_not_attached_to", FAKE, an_ended_container_is_not_attached_to),
    ("a_client_gets_the_streams_that_it_wants", EVERY, a_client_gets_the_streams_that_it_wants),
    ("attaching_and_leaving_costs_nothing_cve_2025_64329", FAKE, attaching_and_leaving_costs_nothing),
];

struct Attached {
    conn: Conn,
    stream: u32,
    /// What came and was not looked for yet.
    read: String,
}

impl Attached {
    fn new(pod: &Pod<'_>, id: &str) -> Attached {
        let mut conn = Conn::open(&pod.agent_socket);
        let stream = conn.stream(shim_service::NAME, shim_service::ATTACH);
        let start = AttachStart { container_id: id.to_owned(), stdin: true, stdout: true, stderr: true };
        conn.send(stream, &AttachInput::from(attach_input::What::Attach(start)));
        Attached { conn, stream, read: String::new() }
    }

    fn write(&mut self, text: &str) {
        let what = attach_input::What::Stdin(text.as_bytes().to_vec());
        self.conn.send(self.stream, &AttachInput::from(what));
    }

    /// Reads until `text` has come on standard output, behind what was read before.
    fn reads(&mut self, text: &str) {
        while !self.read.contains(text) {
            match self.conn.receive(self.stream).unwrap() {
                Some(AttachOutput { what: Some(attach_output::What::Stdout(bytes)), .. }) => {
                    self.read.push_str(&String::from_utf8_lossy(&bytes));
                }
                other => panic!("expected {text:?} on standard output, found {other:?}"),
            }
        }
        let end = self.read.find(text).unwrap() + text.len();
        self.read.drain(..end);
    }

    /// Reads to the end, which must be the exit.
    fn exit_code(&mut self) -> u32 {
        loop {
            match self.conn.receive(self.stream).unwrap() {
                Some(AttachOutput { what: Some(attach_output::What::ExitCode(code)), .. }) => return code,
                Some(_output) => {}
                None => panic!("the stream ended without an exit code"),
            }
        }
    }
}

fn echoing<'s>(pod: &'s Pod<'_>, stdin: &str) -> Task<'s> {
    let script = "echo ready; while read line; do echo got $line; done; echo end; exit 6";
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(script), stdin, "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    task
}

fn clients_come_and_go(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:");
    let mut first = Attached::new(&pod, "c1");
    first.write("one\n");
    first.reads("got one\n");
    drop(first);
    let mut third = Attached::new(&pod, "c1");
    // Nobody says that a client is attached: that it reads shows it.
    third.write("there\n");
    third.reads("got there\n");
    let mut second = Attached::new(&pod, "c1");
    second.write("two\n");
    second.reads("got two\n");
    third.reads("got two\n");
    drop(second);
    third.write("three\n");
    third.reads("got three\n");
    third.conn.send(third.stream, &AttachInput::from(attach_input::What::CloseStdin(true)));
    assert_eq!(third.exit_code(), 6);
    assert_eq!(task.wait(), 6);
    task.delete().unwrap();
    assert_eq!(
        task.log.text("stdout"),
        "ready\ngot one\ngot there\ngot two\ngot three\nend\n",
        "the log has it all"
    );
}

fn fifty_clients_read_the_same(world: &World) {
    const LINES: usize = 20_000;
    let pod = Pod::start(world);
    let script = format!("echo ready; read line; seq 1 {LINES}; exit 6");
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "attach:", "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    let clients: Vec<Attached> = (0..50).map(|_| Attached::new(&pod, "c1")).collect();
    let mut first = Attached::new(&pod, "c1");
    let expected: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
    std::thread::scope(|scope| {
        for mut client in clients {
            let expected = &expected;
            scope.spawn(move || client.reads(expected));
        }
        first.write("go\n");
        first.reads(&expected);
    });
    assert_eq!(task.wait(), 6);
}

fn stdin_once_ends_with_the_first_client(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:?once=true");
    let mut client = Attached::new(&pod, "c1");
    client.write("one\n");
    client.reads("got one\n");
    drop(client);
    assert_eq!(task.wait(), 6, "its standard input has ended");
}

fn close_io_ends_stdin(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:");
    let mut client = Attached::new(&pod, "c1");
    client.write("one\n");
    client.reads("got one\n");
    task.close_stdin().unwrap();
    assert_eq!(client.exit_code(), 6);
    assert_eq!(task.wait(), 6);
}

fn a_client_that_does_not_read_holds_nobody_up(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("read line; head -c 20000000 /dev/zero | tr '\\0' x; exit 4");
    let task = Task::try_create(&pod.shim, "c1", spec, "attach:", "").unwrap();
    task.begin().unwrap();
    let mut client = Attached::new(&pod, "c1");
    client.write("go\n");
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    assert_eq!(task.log.text("stdout").len(), 20_000_000);
}

fn attach_needs_a_container(world: &World) {
    let pod = Pod::start(world);
    let mut client = Attached::new(&pod, "c1");
    let failure = client.conn.receive::<AttachOutput>(client.stream).unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
}

fn an_ended_container_is_not_attached_to(world: &World) {
    let pod = Pod::start(world);
    let task = Task::try_create(&pod.shim, "c1", Spec::sh("exit 3"), "attach:", "").unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 3);
    let mut client = Attached::new(&pod, "c1");
    let failure = client.conn.receive::<AttachOutput>(client.stream).unwrap_err();
    assert_eq!(failure.code, Code::NotFound, "{failure}");
}

fn a_client_gets_the_streams_that_it_wants(world: &World) {
    let pod = Pod::start(world);
    let script = "echo ready; read line; echo out; echo err >&2; exit 4";
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(script), "attach:", "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    let wants = [(true, false), (false, true), (true, true), (false, false)];
    let mut conn = Conn::open(&pod.agent_socket);
    let streams = wants.map(|(stdout, stderr)| {
        let stream = conn.stream(shim_service::NAME, shim_service::ATTACH);
        let start = AttachStart { container_id: "c1".to_owned(), stdin: false, stdout, stderr };
        conn.send(stream, &AttachInput { what: Some(attach_input::What::Attach(start)), window: 1000 });
        // It did not ask for this.
        conn.send(stream, &AttachInput::from(attach_input::What::CloseStdin(true)));
        stream
    });
    let mut first = Attached::new(&pod, "c1");
    first.write("go\n");
    for ((stdout, stderr), stream) in wants.into_iter().zip(streams) {
        let (mut out, mut err, mut code) = (Vec::new(), Vec::new(), None);
        while let Some(AttachOutput { what, .. }) = conn.receive(stream).unwrap() {
            match what.unwrap() {
                attach_output::What::Stdout(bytes) => out.extend(bytes),
                attach_output::What::Stderr(bytes) => err.extend(bytes),
                attach_output::What::ExitCode(exit) => code = Some(exit),
            }
        }
        assert_eq!(out, if stdout { b"out\n".as_slice() } else { b"" });
        assert_eq!(err, if stderr { b"err\n".as_slice() } else { b"" });
        assert_eq!(code, Some(4), "the container's end ends every stream");
    }
    assert_eq!(task.wait(), 4);
}

fn attaching_and_leaving_costs_nothing(world: &World) {
    let pod = Pod::start(world);
    let task = echoing(&pod, "attach:");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    let before = open();
    for _ in 0..500 {
        let mut client = Attached::new(&pod, "c1");
        client.write("x\n");
    }
    until("the shim's descriptors back at their number", || (open() <= before).then_some(()));
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
}

/// A client that wrote more than the process takes is not read from; dropped for not reading, it may go on asking.
fn a_client_that_was_dropped_is_still_answered(world: &World) {
    let pod = Pod::start(world);
    let gate = world.dir().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let said = world.dir().join("said");
    let script = format!(
        "read line <{}; head -c 32000000 /dev/zero; : >{}; exec sleep 1000",
        gate.display(),
        said.display()
    );
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "attach:", "").unwrap();
    task.begin().unwrap();
    let mut client = Attached::new(&pod, "c1");
    // More than its pipe and the shim keep, less than the sockets between them do.
    for _ in 0..6 {
        client.write(&"x".repeat(64 << 10));
    }
    std::fs::write(&gate, "go\n").unwrap();
    // Nobody holds the process up: when it has said all, who did not read is dropped.
    until("all to be said", || said.exists().then_some(()));
    let failure = loop {
        match client.conn.receive::<AttachOutput>(client.stream) {
            Ok(Some(_)) => {}
            other => break other.expect_err("it is dropped"),
        }
    };
    assert!(failure.message.contains("more slowly"), "{failure}");
    let answer: StateResponse =
        client.conn.call(shim_service::NAME, shim_service::STATE, &StateRequest {}).unwrap();
    assert_eq!(answer.tasks.len(), 1);
}
