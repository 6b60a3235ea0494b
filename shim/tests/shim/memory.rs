//! What the shim holds while much is said at once, to clients that listen and to clients that do not.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use berth_proto::process::Status;
use berth_proto::shim::{
    AttachInput, AttachOutput, AttachStart, ExecStart, ExecSyncRequest, ExecSyncResponse, attach_input,
    attach_output, shim_service,
};
use berth_proto::task::{ResizePtyRequest, task_service};
use berth_proto::ttrpc::{self, Request};

use crate::harness::{Conn, Pod, Spec, Streams, Task, World, process, until};
use crate::rotation::{self, Talker};
use crate::{Case, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("eight_streams_of_32_mebibytes", FAKE, eight_streams_of_32_mebibytes),
    ("eight_syncs_of_32_mebibytes", FAKE, eight_syncs_of_32_mebibytes),
    ("eight_execs_on_fifos_of_32_mebibytes", FAKE, eight_execs_on_fifos_of_32_mebibytes),
    ("eight_clients_that_do_not_read_wait", FAKE, eight_clients_that_do_not_read_wait),
    ("a_hundred_slow_clients_are_dropped", FAKE, a_hundred_slow_clients_are_dropped),
    ("a_client_that_asks_and_does_not_read_waits", FAKE, a_client_that_asks_and_does_not_read_waits),
    ("a_gibibyte_in_one_sync_cve_2022_1708_cve_2022_31030", FAKE, a_gibibyte_in_one_sync),
    ("ten_thousand_attaches_cve_2025_64329", FAKE, ten_thousand_attaches),
    ("fifty_thousand_resizes_cve_2022_23471", REAL, fifty_thousand_resizes),
    ("a_thousand_aborted_execs_cve_2022_23471", FAKE, a_thousand_aborted_execs),
    ("rest_costs_nothing", FAKE, rest_costs_nothing),
    ("compressed_logs_cost_the_shim_nothing", FAKE, compressed_logs_cost_the_shim_nothing),
];

/// What eight execs of 32 MiB may cost.
const GROWTH_MAX: usize = 16 << 20;
const EXECS: usize = 8;
const BYTES: usize = 32 << 20;

/// Bytes of memory that a process has, and the most that it has had since it was last reset.
struct Memory {
    pid: u32,
    before: usize,
}

impl Memory {
    /// Begins to measure.
    fn of(pod: &Pod<'_>) -> Memory {
        let pid = pod.shim.pid;
        // Resets the peak (proc(5)).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        Memory { pid, before: kibibytes(pid, "status", "VmRSS:") }
    }

    /// The growth since then, at its highest.
    fn peak_growth(&self) -> usize {
        kibibytes(self.pid, "status", "VmHWM:").saturating_sub(self.before)
    }

    /// The growth since then that is still there.
    fn growth(&self) -> usize {
        kibibytes(self.pid, "smaps_rollup", "Rss:").saturating_sub(self.before)
    }

    fn stayed_below(&self, max: usize, what: &str) {
        let grown = self.peak_growth();
        eprintln!(
            "{what}: the shim grew by {} KiB at most, {} KiB at last",
            grown >> 10,
            self.growth() >> 10
        );
        assert!(grown < max, "{what}: the shim grew by {grown} bytes");
    }

    fn came_back_below(&self, max: usize) {
        let grown = self.growth();
        assert!(grown < max, "the shim grew by {grown} bytes");
    }
}

fn kibibytes(pid: u32, file: &str, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn descriptors(pod: &Pod<'_>) -> usize {
    fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count()
}

fn descriptors_return(pod: &Pod<'_>, before: usize) {
    until("the descriptors back at their number", || (descriptors(pod) <= before).then_some(()));
}

fn sleeper<'s>(pod: &'s Pod<'_>) -> Task<'s> {
    Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"))
}

fn sh(script: &str) -> Vec<u8> {
    serde_json::to_vec(&process(&["/bin/busybox", "sh", "-c", script])).unwrap()
}

/// A client of the container's streams.
fn attach(pod: &Pod<'_>, start: AttachStart) -> (Conn, u32) {
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = conn.stream(shim_service::NAME, shim_service::ATTACH);
    conn.send(stream, &AttachInput::from(attach_input::What::Attach(start)));
    (conn, stream)
}

fn all_streams() -> AttachStart {
    AttachStart { container_id: "c1".to_owned(), stdin: true, stdout: true, stderr: true }
}

/// An exec with its streams on the call.
fn stream(pod: &Pod<'_>, script: &str) -> (Conn, u32) {
    let mut conn = Conn::open(&pod.agent_socket);
    let stream = conn.stream(shim_service::NAME, shim_service::EXEC);
    let start = ExecStart {
        container_id: "c1".to_owned(),
        process: sh(script),
        stdin: false,
        ..ExecStart::default()
    };
    conn.send(stream, &AttachInput::from(attach_input::What::Exec(start)));
    (conn, stream)
}

/// Bytes of both outputs of a stream, to its end.
fn bytes_of(conn: &mut Conn, stream: u32) -> usize {
    let mut bytes = 0;
    while let Some(AttachOutput { what, .. }) = conn.receive(stream).unwrap() {
        match what.unwrap() {
            attach_output::What::Stdout(part) | attach_output::What::Stderr(part) => bytes += part.len(),
            attach_output::What::ExitCode(code) => assert_eq!(code, 0),
        }
    }
    bytes
}

fn sync(pod: &Pod<'_>, script: &str) -> ExecSyncResponse {
    let request =
        ExecSyncRequest { container_id: "c1".to_owned(), process: sh(script), ..ExecSyncRequest::default() };
    Conn::open(&pod.agent_socket).call(shim_service::NAME, shim_service::EXEC_SYNC, &request).unwrap()
}

/// Half of an exec's output to each stream, in turns.
fn both_streams() -> String {
    let half = BYTES / 2;
    format!("head -c {half} /dev/zero >&2 & head -c {half} /dev/zero; wait")
}

fn eight_streams_of_32_mebibytes(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let memory = Memory::of(&pod);
    std::thread::scope(|scope| {
        for _ in 0..EXECS {
            scope.spawn(|| {
                let (mut conn, stream) = stream(&pod, &both_streams());
                assert_eq!(bytes_of(&mut conn, stream), BYTES);
            });
        }
    });
    memory.stayed_below(GROWTH_MAX, "eight streams");
}

fn eight_syncs_of_32_mebibytes(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let memory = Memory::of(&pod);
    std::thread::scope(|scope| {
        for _ in 0..EXECS {
            scope.spawn(|| {
                let answer = sync(&pod, &both_streams());
                assert_eq!(answer.stdout.len(), answer.stderr.len());
                assert!(answer.stdout.len() >= 256 << 10, "{}", answer.stdout.len());
            });
        }
    });
    memory.stayed_below(GROWTH_MAX, "eight syncs");
}

fn eight_execs_on_fifos_of_32_mebibytes(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let memory = Memory::of(&pod);
    std::thread::scope(|scope| {
        for number in 0..EXECS {
            let task = &task;
            scope.spawn(move || {
                let fifo = world.dir().join(format!("out{number}"));
                nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
                let streams = Streams { stdout: fifo.display().to_string(), ..Streams::default() };
                let command = process(&["/bin/busybox", "head", "-c", &BYTES.to_string(), "/dev/zero"]);
                let exec = task.exec_with(&format!("e{number}"), &command, streams).unwrap();
                exec.begin().unwrap();
                assert_eq!(fs::read(&fifo).unwrap().len(), BYTES);
                assert_eq!(exec.wait(), 0);
                exec.delete().unwrap();
            });
        }
    });
    memory.stayed_below(1 << 20, "eight execs on named pipes");
}

/// A client that an exec is for makes it wait, and its going ends it.
fn eight_clients_that_do_not_read_wait(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let memory = Memory::of(&pod);
    let script = |who| format!("head -c {BYTES} /dev/zero; touch {}/ended-{who}-$$", world.dir().display());
    let clients: Vec<(Conn, u32)> = (0..EXECS).map(|_| stream(&pod, &script("unread"))).collect();
    // The neighbour has as much to say, which takes longer than filling the buffers of those that do not read.
    let (mut conn, reading) = stream(&pod, &script("read"));
    assert_eq!(bytes_of(&mut conn, reading), BYTES);
    memory.stayed_below(GROWTH_MAX, "eight clients that do not read");
    let ended = |who: &str| {
        let names = fs::read_dir(world.dir()).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&format!("ended-{who}-"))).count()
    };
    assert_eq!((ended("read"), ended("unread")), (1, 0), "who is read has ended, and nobody else");
    let before = descriptors(&pod);
    drop(clients);
    until("the end of the execs", || (descriptors(&pod) < before.saturating_sub(2 * EXECS)).then_some(()));
    assert_eq!(task.status(), Status::Running);
}

/// Clients that look on and do not read are dropped; the container and those that read have everything.
fn a_hundred_slow_clients_are_dropped(world: &World) {
    let pod = Pod::start(world);
    let gate = world.dir().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("read line <{}; head -c {BYTES} /dev/zero | tr '\\0' x; exit 4", gate.display());
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "", "").unwrap();
    task.begin().unwrap();
    let before = descriptors(&pod);
    let slow: Vec<(Conn, u32)> =
        (0..100).map(|_| attach(&pod, AttachStart { stdin: false, ..all_streams() })).collect();
    let memory = Memory::of(&pod);
    // What has come first is answered first: a later call's answer says that every attach was taken.
    assert_eq!(task.status(), Status::Running);
    fs::write(&gate, "go\n").unwrap();
    assert_eq!(task.wait(), 4, "nobody holds it up");
    memory.stayed_below(GROWTH_MAX, "a hundred slow clients");
    task.delete().unwrap();
    assert_eq!(task.log.text("stdout").len(), BYTES);
    for (mut conn, stream) in slow {
        let end = loop {
            match conn.receive::<AttachOutput>(stream) {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        let failure = end.expect_err("it was dropped");
        assert!(failure.message.contains("more slowly"), "{failure}");
    }
    until("the clients' descriptors to go", || (descriptors(&pod) <= before).then_some(()));
}

/// Few bytes ask for many: what has been asked waits until the answers are taken, and then it is answered.
fn a_client_that_asks_and_does_not_read_waits(world: &World) {
    const ASKED: u32 = 40_000;
    let pod = Pod::start(world);
    let tasks: Vec<Task<'_>> = (0..8)
        .map(|number| Task::start(&pod.shim, &format!("c{number}"), Spec::sh("exec sleep 1000")))
        .collect();
    let memory = Memory::of(&pod);
    let socket = UnixStream::connect(&pod.agent_socket).unwrap();
    std::thread::scope(|scope| {
        let mut client = ttrpc::Client::default();
        let state = Request::of(shim_service::NAME, shim_service::STATE, &(), Duration::ZERO);
        let mut asking = socket.try_clone().unwrap();
        scope.spawn(move || {
            for asked in 0..ASKED {
                // Forgotten, so that the table of open streams, which is bounded, has room.
                let stream = client.call(&state).unwrap();
                client.forget(stream);
                if asked % 100 == 99 {
                    asking.write_all(&client.output().take()).unwrap();
                }
            }
        });
        // Other clients have their turn while this one takes nothing.
        for task in tasks.iter().cycle().take(500) {
            assert_eq!(task.status(), Status::Running);
        }
        memory.stayed_below(4 << 20, "a client that asks and does not read");
        let (mut answers, mut decoder, mut buffer) = (0, ttrpc::Decoder::default(), vec![0; 1 << 16]);
        let mut reading = &socket;
        while answers < ASKED {
            let len = reading.read(&mut buffer).unwrap();
            assert!(len > 0, "after {answers} answers");
            decoder.feed(&buffer[..len]);
            while decoder.next().unwrap().is_some() {
                answers += 1;
            }
        }
    });
}

/// Output beyond the cap is read and dropped, so the process ends and the shim stays small.
fn a_gibibyte_in_one_sync(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let memory = Memory::of(&pod);
    let answer = sync(&pod, "head -c 1073741824 /dev/zero; exit 5");
    assert_eq!((answer.exit_code, answer.timed_out), (5, false));
    memory.stayed_below(4 << 20, "a gibibyte in one sync");
}

fn ten_thousand_attaches(world: &World) {
    let pod = Pod::start(world);
    let task = Task::try_create(&pod.shim, "c1", Spec::sh("while read x; do echo $x; done"), "attach:", "");
    let task = task.unwrap();
    task.begin().unwrap();
    let repeat = |rounds: usize| {
        for round in 0..rounds {
            let (mut conn, stream) = attach(&pod, all_streams());
            if round % 3 == 0 {
                conn.send(stream, &AttachInput::from(attach_input::What::Stdin(b"x\n".to_vec())));
            }
            if round % 100 == 0 {
                assert_eq!(task.status(), Status::Running, "in step with the shim");
            }
        }
    };
    let before = descriptors(&pod);
    repeat(1000);
    descriptors_return(&pod, before);
    let memory = Memory::of(&pod);
    repeat(10_000);
    descriptors_return(&pod, before);
    memory.came_back_below(512 << 10);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
}

fn fifty_thousand_resizes(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("echo ready; exec sleep 1000").terminal();
    let task = Task::try_create(&pod.shim, "c1", spec, "attach:", "").unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    let resize = |count: u32| {
        let mut conn = pod.shim.connect();
        for size in 1..count {
            let (id, exec_id) = ("c1".to_owned(), String::new());
            let request = ResizePtyRequest { id, exec_id, width: size, height: size };
            let (): () = conn.call(berth_proto::TASK_V3, task_service::RESIZE_PTY, &request).unwrap();
        }
    };
    resize(1000);
    let (before, memory) = (descriptors(&pod), Memory::of(&pod));
    resize(50_000);
    descriptors_return(&pod, before);
    memory.came_back_below(256 << 10);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
}

/// Clients that ask for a process and go before, while or after it begins.
fn a_thousand_aborted_execs(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let before = descriptors(&pod);
    let abort = |rounds: usize| {
        for round in 0..rounds {
            let (mut conn, stream) = stream(&pod, "sleep 1000");
            for _ in 0..round % 4 {
                assert_eq!(task.status(), Status::Running);
            }
            if round % 2 == 0 {
                conn.send(stream, &AttachInput::from(attach_input::What::Stdin(vec![0; 1 << 10])));
            }
        }
        until("the end of every exec", || (descriptors(&pod) <= before).then_some(()));
    };
    abort(100);
    let memory = Memory::of(&pod);
    abort(1000);
    memory.came_back_below(512 << 10);
}

/// A container that has said and heard much keeps no buffers for it.
fn rest_costs_nothing(world: &World) {
    let pod = Pod::start(world);
    let done = world.dir().join("done");
    let script = format!("cat; head -c 8000000 /dev/zero; touch {}; exec sleep 1000", done.display());
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(&script), "attach:", "").unwrap();
    task.begin().unwrap();
    let memory = Memory::of(&pod);
    let (mut conn, stream) = attach(&pod, all_streams());
    for _ in 0..64 {
        conn.send(stream, &AttachInput::from(attach_input::What::Stdin(vec![b'y'; 1 << 10])));
    }
    conn.send(stream, &AttachInput::from(attach_input::What::CloseStdin(true)));
    until("the last word", || done.exists().then_some(()));
    drop(conn);
    until("little memory", || (memory.growth() < 256 << 10).then_some(()));
}

/// The compressor's memory is that of a copy of the shim, and goes with it.
fn compressed_logs_cost_the_shim_nothing(world: &World) {
    let pod = Pod::start(world);
    let mut talker = Talker::start(world, &pod, "&max_size=1000&max_files=9");
    talker.rotate();
    let memory = Memory::of(&pod);
    let mut compress = |second: u32| {
        let name = format!("0.log.20200101-00000{second}");
        fs::write(talker.path(&name), rotation::noise()).unwrap();
        talker.rotate();
        until("the compressed log", || talker.path(&format!("{name}.gz")).exists().then_some(()));
    };
    (0..4).for_each(&mut compress);
    memory.stayed_below(128 << 10, "compressing logs");
    talker.task.kill(9).unwrap();
    assert_eq!(talker.task.wait(), 137);
}
