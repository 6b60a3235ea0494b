//! Execs: through containerd, to their end in one call, and with their streams on the call.

use std::fs;

use berth_proto::process::Status;
use berth_proto::shim::{
    AttachInput, AttachOutput, ExecStart, ExecSyncRequest, ExecSyncResponse, attach_input, attach_output,
    shim_service,
};
use berth_proto::ttrpc::{self, Code};
use serde_json::json;

use crate::harness::{Conn, Pod, Runtime, Spec, Task, World, process, until};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_missing_program_is_an_error", EVERY, a_missing_program_is_an_error),
    ("exec_needs_a_running_container", FAKE, exec_needs_a_running_container),
    ("sync_returns_code_and_output", EVERY, sync_returns_code_and_output),
    ("sync_runs_a_command_as_the_container_runs", REAL, sync_runs_a_command_as_the_container_runs),
    ("many_syncs_leave_nothing_behind", REAL, many_syncs_leave_nothing_behind),
    ("sync_runs_side_by_side", EVERY, sync_runs_side_by_side),
    ("sync_answers_many_at_once", EVERY, sync_answers_many_at_once),
    ("sync_timeout_kills_descendants", REAL, sync_timeout_kills_descendants),
    ("sync_timeout_kills_daemons", &[Runtime::Runc], sync_timeout_kills_daemons),
    ("signals_are_128_and_their_number", EVERY, signals_are_128_and_their_number),
    ("sync_does_not_wait_for_leftovers", REAL, sync_does_not_wait_for_leftovers),
    ("sync_output_is_capped_cve_2022_1708_cve_2022_31030", EVERY, sync_output_is_capped),
    ("sync_ends_with_its_container", REAL, sync_ends_with_its_container),
    ("stream_carries_all_three", EVERY, stream_carries_all_three),
    ("stream_is_exact_for_large_output", EVERY, stream_is_exact_for_large_output),
    ("stream_ends_with_its_client", REAL, stream_ends_with_its_client),
    ("no_descriptor_leaks_into_an_exec_cve_2024_21626", REAL, no_descriptor_leaks_into_an_exec),
];

fn sleeper<'s>(pod: &'s Pod<'_>) -> Task<'s> {
    Task::start(&pod.shim, "c1", Spec::sh("echo ready; exec sleep 1000"))
}

fn sh(script: &str) -> serde_json::Value {
    process(&["/bin/busybox", "sh", "-c", script])
}

fn exec_sync(pod: &Pod<'_>, request: &ExecSyncRequest) -> Result<ExecSyncResponse, ttrpc::Status> {
    Conn::open(&pod.agent_socket).call(shim_service::NAME, shim_service::EXEC_SYNC, request)
}

fn sync_request(script: &str) -> ExecSyncRequest {
    let process = serde_json::to_vec(&sh(script)).unwrap();
    ExecSyncRequest { container_id: "c1".to_owned(), process, ..ExecSyncRequest::default() }
}

fn a_missing_program_is_an_error(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let request = ExecSyncRequest {
        process: serde_json::to_vec(&process(&["/no/such/program"])).unwrap(),
        ..sync_request("")
    };
    let failure = exec_sync(&pod, &request).unwrap_err();
    assert!(failure.message.contains("/no/such/program"), "{failure}");
    assert_eq!(task.status(), Status::Running);
}

fn exec_needs_a_running_container(world: &World) {
    let pod = Pod::start(world);
    assert_eq!(exec_sync(&pod, &sync_request("exit 0")).unwrap_err().code, Code::NotFound);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 0"));
    task.wait();
    assert_eq!(exec_sync(&pod, &sync_request("exit 0")).unwrap_err().code, Code::FailedPrecondition);
}

fn sync_returns_code_and_output(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    let answer = exec_sync(&pod, &sync_request("echo out; echo err >&2; exit 3")).unwrap();
    let expected = ExecSyncResponse {
        exit_code: 3,
        stdout: b"out\n".to_vec(),
        stderr: b"err\n".to_vec(),
        timed_out: false,
    };
    assert_eq!(answer, expected);
    task.kill(9).unwrap();
    world.containerd.event("exit c1");
    let topics: Vec<String> = world.containerd.events().iter().map(|event| event.brief()).collect();
    assert_eq!(topics, ["create c1", "start c1", "exit c1"], "containerd is not told of a probe");
}

fn sync_runs_side_by_side(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let gate = world.shared().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let waits = format!("read line < {}; echo $line", world.shared_path("gate"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| exec_sync(&pod, &sync_request(&waits)).unwrap());
        let quick = exec_sync(&pod, &sync_request("echo quick")).unwrap();
        assert_eq!(quick.stdout, b"quick\n");
        fs::write(&gate, "go\n").unwrap();
        assert_eq!(waiting.join().unwrap().stdout, b"go\n");
    });
}

fn sync_answers_many_at_once(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    std::thread::scope(|scope| {
        for prober in 0..12_u32 {
            let pod = &pod;
            scope.spawn(move || {
                for round in 0..4 {
                    let script = format!("echo {prober}.{round}; echo {round}.{prober} >&2; exit {prober}");
                    let answer = exec_sync(pod, &sync_request(&script)).unwrap();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    assert_eq!(answer.exit_code, prober);
                    assert_eq!(text(&answer.stdout), format!("{prober}.{round}\n"));
                    assert_eq!(text(&answer.stderr), format!("{round}.{prober}\n"));
                }
            });
        }
    });
    assert_eq!(task.status(), Status::Running);
}

fn sync_timeout_kills_descendants(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    task.log.says("ready");
    let before = task.pids().unwrap();
    let script = "echo begun; setsid sh -c 'sleep 4711 & sleep 4712' & sleep 4713";
    // From its start on: none of them is the runtime's.
    let request = ExecSyncRequest { timeout_ms: 5000, ..sync_request(script) };
    let answer = exec_sync(&pod, &request).unwrap();
    assert!(answer.timed_out);
    assert_eq!(answer.stdout, b"begun\n");
    until("the end of everything the exec started", || (task.pids().unwrap() == before).then_some(()));
    assert_eq!(task.status(), Status::Running, "the container goes on");
}

/// A daemon has no parent but the container's init, and was born before anyone could look. crun can begin an exec in a
/// group of its own on cgroup v2 only.
fn sync_timeout_kills_daemons(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    task.log.says("ready");
    let before = task.pids().unwrap();
    let script = "(setsid sh -c '(setsid sleep 4721 &) ; sleep 4722' </dev/null >/dev/null 2>&1 &); \
        until grep -qs 472[1] /proc/[0-9]*/cmdline; do :; done; echo there; sleep 4723";
    // In its first moments, and at last for sure after the daemon was seen.
    for timeout_ms in [300, 300, 300, 300, 5000] {
        let request = ExecSyncRequest { timeout_ms, ..sync_request(script) };
        let answer = exec_sync(&pod, &request).unwrap();
        assert!(answer.timed_out);
        assert!(timeout_ms == 300 || answer.stdout == b"there\n", "there was no daemon: {answer:?}");
        until("the end of every daemon", || (task.pids().unwrap() == before).then_some(()));
    }
    assert_eq!(task.status(), Status::Running, "the container goes on");
}

fn signals_are_128_and_their_number(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    // SIGHUP, SIGABRT, SIGKILL, SIGTERM, the first and the last real-time signal.
    for signal in [1, 6, 9, 15, 34, 64] {
        let script = format!("kill -{signal} $$; sleep 1000");
        let answer = exec_sync(&pod, &sync_request(&script)).unwrap();
        assert_eq!((answer.exit_code, answer.timed_out), (128 + signal, false));
        let name = format!("e{signal}");
        let exec = task.exec(&name, &process(&["/bin/busybox", "sleep", "1000"]));
        let pid = exec.begin().unwrap().pid;
        // runc answers a moment before it becomes the program, and takes some signals for its own until then.
        let is_the_program =
            || fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "busybox\n");
        until("the program", || is_the_program().then_some(()));
        exec.kill(signal).unwrap();
        assert_eq!(exec.wait(), 128 + signal);
        world.containerd.event(&format!("exit c1/{name}"));
    }
    assert_eq!(task.status(), Status::Running);
}

fn command(words: &[&str]) -> ExecSyncRequest {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    ExecSyncRequest { container_id: "c1".to_owned(), command, ..ExecSyncRequest::default() }
}

/// By its command alone: environment, directory and the rest are those of the container.
fn sync_runs_a_command_as_the_container_runs(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let script = "cat /proc/self/status /proc/1/status | grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs)'; pwd; \
                  readlink /proc/1/cwd; echo $PATH; tr '\\0' '\\n' </proc/1/environ | sed -n 's/^PATH=//p'";
    let answer = exec_sync(&pod, &command(&["/bin/busybox", "sh", "-c", script])).unwrap();
    assert_eq!(answer.exit_code, 0, "{}", String::from_utf8_lossy(&answer.stderr));
    let said = String::from_utf8(answer.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let (status, rest) = lines.split_at(lines.len() - 4);
    let (own, init) = status.split_at(status.len() / 2);
    assert_eq!(own, init, "{said}");
    assert!(own.len() >= 4, "{said}");
    assert_eq!((rest[0], rest[2]), (rest[1], rest[3]), "{said}");
    let failure = exec_sync(&pod, &command(&["/no/such/program"])).unwrap_err();
    assert!(failure.message.contains("/no/such/program"), "{failure}");
}

/// As probes come, for days.
fn many_syncs_leave_nothing_behind(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let probe = || exec_sync(&pod, &command(&["/bin/busybox", "true"])).unwrap();
    let files = || fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", pod.shim.pid)).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    for _warm in 0..20 {
        assert_eq!(probe().exit_code, 0);
    }
    let (before, open) = (resident(), files());
    for _round in 0..200 {
        assert_eq!(probe().exit_code, 0);
    }
    until("no descriptor more", || (files() <= open).then_some(()));
    let grown = resident().saturating_sub(before);
    assert!(grown < 128, "the shim grew by {grown} KiB");
}

fn sync_does_not_wait_for_leftovers(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let answer = exec_sync(&pod, &sync_request("setsid sleep 1000 & echo done")).unwrap();
    assert_eq!((answer.exit_code, answer.stdout.as_slice()), (0, &b"done\n"[..]));
}

/// Output beyond the cap is read and dropped, so the process ends and the shim stays small. No more of it than shows that: a guest
/// moves a few megabytes a second through pipes (a gibibyte is moved outside, `memory::`).
fn sync_output_is_capped(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let script = "head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2; exit 5";
    let request = ExecSyncRequest { output_bytes_max: 100 << 10, ..sync_request(script) };
    let before = peak_memory(pod.shim.pid);
    let answer = exec_sync(&pod, &request).unwrap();
    assert_eq!(answer.exit_code, 5);
    assert_eq!((answer.stdout.len(), answer.stderr.len()), (100 << 10, 100 << 10));
    let grown = peak_memory(pod.shim.pid) - before;
    assert!(grown < 1 << 20, "the shim grew by {grown} bytes");
    for asked in [0, 16 << 20] {
        let script = "head -c 2000000 /dev/zero";
        let request = ExecSyncRequest { output_bytes_max: asked, ..sync_request(script) };
        assert_eq!(exec_sync(&pod, &request).unwrap().stdout.len(), 512 << 10, "asked for {asked}");
    }
}

fn peak_memory(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn sync_ends_with_its_container(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    task.log.says("ready");
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| exec_sync(&pod, &sync_request("touch /shared/begun; sleep 1000")).unwrap());
        until("the exec", || world.shared().join("begun").exists().then_some(()));
        task.kill(9).unwrap();
        assert_eq!(running.join().unwrap().exit_code, 137);
    });
}

/// An exec whose streams are on the call.
struct Streamed {
    conn: Conn,
    stream: u32,
}

impl Streamed {
    fn start(pod: &Pod<'_>, process: &serde_json::Value) -> Streamed {
        let mut conn = Conn::open(&pod.agent_socket);
        let stream = conn.stream(shim_service::NAME, shim_service::EXEC);
        let process = serde_json::to_vec(process).unwrap();
        let start = ExecStart { container_id: "c1".to_owned(), process, stdin: true, ..ExecStart::default() };
        conn.send(stream, &AttachInput::from(attach_input::What::Exec(start)));
        Streamed { conn, stream }
    }

    fn send(&mut self, what: attach_input::What) {
        self.conn.send(self.stream, &AttachInput::from(what));
    }

    /// Everything until the end: both outputs and the exit code.
    fn finish(&mut self) -> (Vec<u8>, Vec<u8>, Option<u32>) {
        let (mut stdout, mut stderr, mut code) = (Vec::new(), Vec::new(), None);
        while let Some(AttachOutput { what, .. }) = self.conn.receive(self.stream).unwrap() {
            assert_eq!(code, None, "the exit code is the last message");
            match what.unwrap() {
                attach_output::What::Stdout(bytes) => stdout.extend(bytes),
                attach_output::What::Stderr(bytes) => stderr.extend(bytes),
                attach_output::What::ExitCode(exit) => code = Some(exit),
            }
        }
        (stdout, stderr, code)
    }
}

fn stream_carries_all_three(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    let mut exec = Streamed::start(&pod, &sh("cat; echo err >&2; exit 9"));
    exec.send(attach_input::What::Stdin(b"through ".to_vec()));
    exec.send(attach_input::What::Stdin(b"and through".to_vec()));
    exec.send(attach_input::What::CloseStdin(true));
    assert_eq!(exec.finish(), (b"through and through".to_vec(), b"err\n".to_vec(), Some(9)));
}

fn stream_is_exact_for_large_output(world: &World) {
    let pod = Pod::start(world);
    let _task = sleeper(&pod);
    // In large pieces, then in small ones.
    let script = "seq 0 269999; i=270000; while [ $i -lt 300000 ]; do echo $i; i=$((i+1)); done";
    let mut exec = Streamed::start(&pod, &sh(script));
    let expected: String = (0..300_000).map(|number| format!("{number}\n")).collect();
    let (stdout, stderr, code) = exec.finish();
    assert_eq!((stdout.len(), stderr.len(), code), (expected.len(), 0, Some(0)));
    assert!(stdout == expected.into_bytes(), "not a byte is lost, added or moved");
}

fn stream_ends_with_its_client(world: &World) {
    let pod = Pod::start(world);
    let task = sleeper(&pod);
    task.log.says("ready");
    let exec = Streamed::start(&pod, &sh("while :; do echo x; done"));
    until("the exec", || (task.pids().unwrap().len() == 2).then_some(()));
    drop(exec);
    until("the end of the exec that writes to nobody", || (task.pids().unwrap().len() == 1).then_some(()));
}

fn no_descriptor_leaks_into_an_exec(world: &World) {
    let pod = Pod::start(world);
    let script = "ls /proc/self/fd | wc -l";
    let task = Task::start(&pod.shim, "c1", Spec::sh(&format!("{script}; exec sleep 1000")));
    // Standard streams and the directory that ls reads.
    task.log.says("4\n");
    let answer = exec_sync(&pod, &sync_request(script)).unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "4\n");
    let mut terminal = process(&["/bin/busybox", "sh", "-c", script]);
    terminal["terminal"] = json!(true);
    let mut exec = Streamed::start(&pod, &terminal);
    assert_eq!(String::from_utf8(exec.finish().0).unwrap(), "4\r\n");
}
