//! Containers and execs with a terminal.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use berth_proto::shim::{
    AttachInput, AttachOutput, AttachStart, ExecStart, Resize, attach_input, attach_output, shim_service,
};
use serde_json::json;

use crate::harness::{Conn, Pod, Spec, Task, World, process, until};
use crate::{Case, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_terminal_has_a_size_and_one_stream", REAL, a_terminal_has_a_size_and_one_stream),
    ("an_exec_may_have_a_terminal", REAL, an_exec_may_have_a_terminal),
    ("resizing_costs_nothing_cve_2022_23471", REAL, resizing_costs_nothing),
    ("a_dead_shims_sockets_are_in_nobodys_way", REAL, a_dead_shims_sockets_are_in_nobodys_way),
    ("leaving_a_terminal_does_not_hang_up", REAL, leaving_a_terminal_does_not_hang_up),
];

struct Typing {
    conn: Conn,
    stream: u32,
    /// What was shown and not looked for yet.
    shown: String,
}

impl Typing {
    fn new(pod: &Pod<'_>, method: &str, first: attach_input::What) -> Typing {
        let mut conn = Conn::open(&pod.agent_socket);
        let stream = conn.stream(shim_service::NAME, method);
        let mut typing = Typing { conn, stream, shown: String::new() };
        typing.send(first);
        typing
    }

    fn attach(pod: &Pod<'_>) -> Typing {
        let start = AttachStart { container_id: "c1".to_owned(), stdin: true, stdout: true, stderr: false };
        Typing::new(pod, shim_service::ATTACH, attach_input::What::Attach(start))
    }

    fn send(&mut self, what: attach_input::What) {
        self.conn.send(self.stream, &AttachInput::from(what));
    }

    fn types(&mut self, text: &str) {
        self.send(attach_input::What::Stdin(text.as_bytes().to_vec()));
    }

    /// Reads until `text` was shown, behind what was seen before.
    fn sees(&mut self, text: &str) {
        while !self.shown.contains(text) {
            match self.conn.receive(self.stream).unwrap() {
                Some(AttachOutput { what: Some(attach_output::What::Stdout(bytes)), .. }) => {
                    self.shown.push_str(&String::from_utf8_lossy(&bytes));
                }
                other => panic!("expected {text:?}, found {other:?} after {:?}", self.shown),
            }
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end);
    }
}

fn shell<'s>(pod: &'s Pod<'_>) -> Task<'s> {
    let spec = Spec::sh("echo ready; exec sh").terminal();
    let task = Task::try_create(&pod.shim, "c1", spec, "attach:", "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    task
}

fn a_terminal_has_a_size_and_one_stream(world: &World) {
    let pod = Pod::start(world);
    let task = shell(&pod);
    task.resize(111, 44).unwrap();
    let mut typing = Typing::attach(&pod);
    typing.types("stty size\n");
    typing.sees("44 111");
    typing.send(attach_input::What::Resize(Resize { width: 99, height: 33 }));
    typing.types("stty size\n");
    typing.sees("33 99");
    typing.types("echo $((40+2)) >&2\n");
    // With its end: what is typed next is echoed wherever the terminal is.
    typing.sees("42\r\n");
    typing.types("exit 5\n");
    assert_eq!(task.wait(), 5);
    task.delete().unwrap();
    let lines = task.log.lines();
    assert!(lines.iter().all(|line| line.stream == "stdout" && !line.content.ends_with('\r')), "{lines:?}");
    assert!(lines.iter().any(|line| line.content == "42"), "{lines:?}");
}

fn an_exec_may_have_a_terminal(world: &World) {
    let pod = Pod::start(world);
    let _task = Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    let mut shell = process(&["/bin/busybox", "sh"]);
    shell["terminal"] = json!(true);
    shell["consoleSize"] = json!({ "width": 70, "height": 20 });
    let start = ExecStart {
        container_id: "c1".to_owned(),
        process: serde_json::to_vec(&shell).unwrap(),
        stdin: true,
        ..ExecStart::default()
    };
    let mut typing = Typing::new(&pod, shim_service::EXEC, attach_input::What::Exec(start));
    typing.types("stty size; tty\n");
    typing.sees("20 70");
    typing.sees("/dev/pts/");
    typing.send(attach_input::What::Resize(Resize { width: 71, height: 21 }));
    typing.types("stty size\n");
    typing.sees("21 71");
    typing.types("exit 9\n");
    loop {
        match typing.conn.receive::<AttachOutput>(typing.stream).unwrap().expect("an exit code").what {
            Some(attach_output::What::ExitCode(code)) => break assert_eq!(code, 9),
            Some(attach_output::What::Stdout(_)) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn resizing_costs_nothing(world: &World) {
    let pod = Pod::start(world);
    let task = shell(&pod);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    task.resize(1, 1).unwrap();
    let before = open();
    for size in 1..1000 {
        task.resize(size, size).unwrap();
    }
    until("the shim's descriptors back at their number", || (open() <= before).then_some(()));
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(
        task.resize(1, 1).unwrap_err().code,
        berth_proto::ttrpc::Code::NotFound,
        "of an ended process"
    );
}

fn leaving_a_terminal_does_not_hang_up(world: &World) {
    let pod = Pod::start(world);
    let task = shell(&pod);
    let mut first = Typing::attach(&pod);
    first.types("x=still-here\n");
    first.sees("x=still-here");
    drop(first);
    let mut second = Typing::attach(&pod);
    second.types("echo $x\n");
    second.sees("still-here\r\n");
    assert_eq!(task.status(), berth_proto::process::Status::Running);
}

/// A shim that was killed may leave the socket of a terminal, and another may get its pid.
fn a_dead_shims_sockets_are_in_nobodys_way(world: &World) {
    let pod = Pod::start(world);
    let directory = Path::new("/run/berth-shim/console");
    DirBuilder::new().recursive(true).mode(0o700).create(directory).unwrap();
    // The number at the end is the shim's next operation's.
    let stale = (0..20).map(|number| directory.join(format!("{}-{number}", pod.shim.pid)));
    let stale: Vec<PathBuf> = stale.collect();
    for path in &stale {
        drop(UnixListener::bind(path).unwrap());
    }
    let task = Task::create(&pod.shim, "c1", Spec::sh("tty").terminal());
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    assert_eq!(task.log.text("stdout"), "/dev/pts/0\n");
    pod.shim.murder();
    pod.shim.delete();
    assert!(!stale.iter().any(|path| path.exists()), "what is left goes with the shim");
}
