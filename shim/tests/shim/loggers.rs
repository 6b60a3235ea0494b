//! Logging programs: `binary://` and `binary-v2://`, good ones and bad ones.

use std::fs;
use std::path::{Path, PathBuf};

use berth_proto::process::Status as ProcessStatus;
use berth_proto::ttrpc::{Code, Status};

use crate::harness::{Pod, Spec, Streams, Task, World, is_gone, process, until, write_program};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_logging_program_gets_both_streams", EVERY, a_logging_program_gets_both_streams),
    ("a_program_gets_arguments_and_names_alone", FAKE, a_program_gets_arguments_and_names_alone),
    ("an_exec_may_have_its_own_program", EVERY, an_exec_may_have_its_own_program),
    ("a_terminal_may_be_logged", REAL, a_terminal_may_be_logged),
    ("version_2_is_waited_for", EVERY, version_2_is_waited_for),
    ("version_2_without_its_byte_is_an_error", EVERY, version_2_without_its_byte_is_an_error),
    ("version_1_that_ends_at_once_counts_as_ready", FAKE, version_1_that_ends_at_once_counts_as_ready),
    (
        "a_program_that_never_reads_holds_up_one_container",
        FAKE,
        a_program_that_never_reads_holds_up_one_container,
    ),
    ("a_program_may_read_after_the_delete", FAKE, a_program_may_read_after_the_delete),
    ("what_cannot_be_started_is_an_error", FAKE, what_cannot_be_started_is_an_error),
    ("streams_lead_to_one_program", FAKE, streams_lead_to_one_program),
    ("annotations_start_nothing_cve_2026_53488", FAKE, annotations_start_nothing),
];

/// Copies both streams to the files of these names, once it has said by version 2 that it is ready.
const COPY: &str =
    "printf x >&5; exec 5>&-; cat <&3 >$OUT & cat <&4 >$ERR & exec 3<&- 4<&-; wait; echo over >$END\n";

/// What a test has of a logging program.
struct Program {
    path: PathBuf,
    out: PathBuf,
    err: PathBuf,
    end: PathBuf,
}

impl Program {
    /// A shell script with `body`, in which `$OUT`, `$ERR` and `$END` name files.
    fn new(world: &World, name: &str, body: &str) -> Program {
        let file = |kind: &str| world.dir().join(format!("{name}.{kind}"));
        let [path, out, err, end] = ["logger", "out", "err", "end"].map(file);
        let (o, e, n) = (out.display(), err.display(), end.display());
        let text = format!("#!/bin/busybox sh\nOUT={o} ERR={e} END={n}\nPATH=/bin:/usr/bin\n{body}");
        write_program(&path, &text);
        Program { path, out, err, end }
    }

    fn streams(&self, scheme: &str) -> Streams {
        let uri = format!("{scheme}://{}", self.path.display());
        Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri }
    }

    /// Waits until the program has ended with these streams read.
    fn has_read(&self, out: &str, err: &str) {
        until("the program's end", || self.end.exists().then_some(()));
        assert_eq!((read(&self.out).as_str(), read(&self.err).as_str()), (out, err));
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn gate(world: &World) -> PathBuf {
    let gate = world.dir().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    gate
}

fn try_logged(pod: &Pod<'_>, id: &str, script: &str, streams: Streams) -> Result<(), Status> {
    Task::create_with(&pod.shim, id, Spec::sh(script), streams).map(|_task| ())
}

fn a_logging_program_gets_both_streams(world: &World) {
    let pod = Pod::start(world);
    for scheme in ["binary", "binary-v2"] {
        let program = Program::new(world, scheme, COPY);
        let spec = Spec::sh("echo one; echo two >&2; exit 4");
        let task = Task::create_with(&pod.shim, scheme, spec, program.streams(scheme)).unwrap();
        task.begin().unwrap();
        assert_eq!(task.wait(), 4);
        task.delete().unwrap();
        program.has_read("one\n", "two\n");
    }
}

fn a_program_gets_arguments_and_names_alone(world: &World) {
    let pod = Pod::start(world);
    let body = "{ busybox tr '\\0' ' ' </proc/self/environ; echo; for a; do echo \"[$a]\"; done; } >$OUT; printf x >&5; echo >$END";
    let program = Program::new(world, "l", body);
    let mut streams = program.streams("binary-v2");
    streams.stdout.push_str("?-a%20b=c+d&flag");
    streams.stderr = String::new();
    try_logged(&pod, "c1", "exit 0", streams).unwrap();
    let names = format!("CONTAINER_ID=c1 CONTAINER_NAMESPACE={} ", world.name());
    program.has_read(&format!("{names}\n[-a b]\n[c d]\n[flag]\n[]\n"), "");
}

fn an_exec_may_have_its_own_program(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    let program = Program::new(world, "l", &format!("echo $CONTAINER_ID >$OUT.name; {COPY}"));
    let command = process(&["/bin/busybox", "sh", "-c", "echo of the exec"]);
    let exec = task.exec_with("e1", &command, program.streams("binary-v2")).unwrap();
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 0);
    exec.delete().unwrap();
    program.has_read("of the exec\n", "");
    assert_eq!(read(&program.out.with_extension("out.name")), "e1\n");
}

fn a_terminal_may_be_logged(world: &World) {
    let pod = Pod::start(world);
    let program = Program::new(world, "l", COPY);
    let spec = Spec::sh("tty; head -c 200000 /dev/zero | tr '\\0' x; exit 4").terminal();
    let task = Task::create_with(&pod.shim, "c1", spec, program.streams("binary-v2").of_terminal()).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 4);
    task.delete().unwrap();
    program.has_read(&format!("/dev/pts/0\r\n{}", "x".repeat(200_000)), "");
}

/// The container is not begun before its program is ready, and nobody else waits meanwhile.
fn version_2_is_waited_for(world: &World) {
    let pod = Pod::start(world);
    let gate = gate(world);
    let program = Program::new(world, "l", &format!("read line <{}; {COPY}", gate.display()));
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| {
            let streams = program.streams("binary-v2");
            Task::create_with(&pod.shim, "c1", Spec::sh("echo begun"), streams).unwrap()
        });
        let neighbour = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
        assert_eq!(neighbour.wait(), 5);
        assert!(!Task::is_in_creation(&pod.shim, "c1") && !creation.is_finished());
        fs::write(&gate, "go\n").unwrap();
        let task = creation.join().unwrap();
        task.begin().unwrap();
        assert_eq!(task.wait(), 0);
        task.delete().unwrap();
    });
    program.has_read("begun\n", "");
}

fn version_2_without_its_byte_is_an_error(world: &World) {
    let pod = Pod::start(world);
    let bad = Program::new(world, "bad", "exit 0\n");
    let closing = Program::new(world, "closing", &COPY.replace("printf x >&5;", ""));
    for program in [&bad, &closing] {
        let failure = try_logged(&pod, "c1", "exit 0", program.streams("binary-v2")).unwrap_err();
        assert!(failure.message.contains("did not say that it is ready"), "{failure}");
    }
    let task = Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    let command = process(&["/bin/busybox", "true"]);
    let exec = task.exec_with("e1", &command, bad.streams("binary-v2")).unwrap();
    let failure = exec.begin().unwrap_err();
    assert!(failure.message.contains("did not say that it is ready"), "{failure}");
    exec.delete().unwrap();
    assert_eq!(task.status(), ProcessStatus::Running);
}

/// As with the runc shim: the end of descriptor 5 is readiness, and who then writes to nobody is told by a signal.
fn version_1_that_ends_at_once_counts_as_ready(world: &World) {
    let pod = Pod::start(world);
    let program = Program::new(world, "l", "exit 0\n");
    let task =
        Task::create_with(&pod.shim, "c1", Spec::run(&["/bin/busybox", "yes"]), program.streams("binary"));
    let task = task.unwrap();
    task.begin().unwrap();
    let code = task.wait();
    // busybox gets the signal, or sees the error when it was told to ignore it.
    assert!(code == 141 || code == 1, "{code}");
}

fn a_program_that_never_reads_holds_up_one_container(world: &World) {
    let pod = Pod::start(world);
    let program = Program::new(world, "l", "echo $$ >$OUT; printf x >&5; exec sleep 1000\n");
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("yes"), program.streams("binary-v2")).unwrap();
    task.begin().unwrap();
    let neighbour = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
    assert_eq!(neighbour.wait(), 5);
    assert_eq!(task.status(), ProcessStatus::Running);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
    let pid: u32 = read(&program.out).trim().parse().unwrap();
    until("the end of the program, which is asked to end", || is_gone(pid).then_some(()));
}

fn a_program_may_read_after_the_delete(world: &World) {
    let pod = Pod::start(world);
    let gate = gate(world);
    let late =
        format!("printf x >&5; exec 5>&-; read line <{}; cat <&3 >$OUT; echo over >$END\n", gate.display());
    let program = Program::new(world, "l", &late);
    let spec = Spec::sh("head -c 60000 /dev/zero | tr '\\0' x");
    let task = Task::create_with(&pod.shim, "c1", spec, program.streams("binary-v2")).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    task.delete().unwrap();
    fs::write(&gate, "go\n").unwrap();
    program.has_read(&"x".repeat(60_000), "");
}

fn what_cannot_be_started_is_an_error(world: &World) {
    let pod = Pod::start(world);
    let plain = world.dir().join("plain");
    fs::write(&plain, "not a program").unwrap();
    let table = [
        ("binary:///no/such/program", "/no/such/program", Code::Internal),
        ("binary-v2:///no/such/program", "/no/such/program", Code::Internal),
        ("binary-v2:///tmp", "/tmp", Code::Internal),
        (&format!("binary-v2://{}", plain.display()), "plain", Code::Internal),
        ("file:///no%00where", "NUL", Code::InvalidArgument),
        ("file:///tmp", "/tmp", Code::Internal),
        ("/tmp", "/tmp", Code::Internal),
        ("/no/such/fifo", "/no/such/fifo", Code::Internal),
        ("binary://logger", "not absolute", Code::InvalidArgument),
        ("binary-v2:///opt/../bin/sh", "..", Code::InvalidArgument),
        ("cri-log://0.log", "not absolute", Code::InvalidArgument),
        ("binary-v3:///bin/sh", "expected", Code::InvalidArgument),
    ];
    for (uri, says, code) in table {
        let streams = Streams { stdin: String::new(), stdout: uri.to_owned(), stderr: String::new() };
        let failure = try_logged(&pod, "c1", "exit 0", streams).unwrap_err();
        assert!(failure.code == code && failure.message.contains(says), "{uri}: {failure}");
    }
    let streams = Streams { stdin: "../fifo".to_owned(), ..Streams::default() };
    assert_eq!(try_logged(&pod, "c1", "exit 0", streams).unwrap_err().code, Code::InvalidArgument);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 3"));
    assert_eq!(task.wait(), 3, "nothing of the failures is in the way");
}

fn streams_lead_to_one_program(world: &World) {
    let pod = Pod::start(world);
    let (one, two) = (Program::new(world, "one", COPY), Program::new(world, "two", COPY));
    let mut streams = one.streams("binary-v2");
    streams.stderr = two.streams("binary-v2").stderr;
    let failure = try_logged(&pod, "c1", "exit 0", streams).unwrap_err();
    assert!(failure.message.contains("one logging program"), "{failure}");
    assert!(!one.out.exists(), "it was not started");
}

/// Images and manifests choose annotations; only the request says where streams lead.
fn annotations_start_nothing(world: &World) {
    let pod = Pod::start(world);
    let program = Program::new(world, "l", "echo over >$END\n");
    let uri = format!("binary://{}", program.path.display());
    let mut spec = Spec::sh("echo said; exit 3");
    for name in [
        "io.containerd.log-uri",
        "io.containerd.runtime.v2.log-uri",
        "containerd.io/log-uri",
        "nerdctl/log-uri",
        "io.kubernetes.cri.log-uri",
        "stdout",
    ] {
        spec = spec.annotation(name, &uri);
    }
    let task = Task::start(&pod.shim, "c1", spec);
    assert_eq!(task.wait(), 3);
    task.delete().unwrap();
    assert_eq!(task.log.text("stdout"), "said\n");
    assert!(!program.end.exists());
}
