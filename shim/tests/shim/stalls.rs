//! Disks that do not answer: what waits for them, and what does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use berth_proto::process::Status as ProcessStatus;
use berth_proto::sandbox::{ShutdownSandboxRequest, ShutdownSandboxResponse, sandbox_service};
use berth_proto::shim::{
    ExecSyncRequest, ExecSyncResponse, ReopenLogRequest, ReopenLogResponse, Task as Ended, shim_service,
};
use berth_proto::task::{ConnectRequest, ConnectResponse, DeleteResponse, task_service};
use berth_proto::types::Mount;
use berth_shim_conformance::harness::call_program;
use prost::Message;

use super::mounts::{base, devices, mount, run, text};
use crate::harness::{Conn, Pod, Spec, Streams, Task, World, is_gone, process, until};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("a_stalled_disk_holds_up_one_container_and_loses_nothing", EVERY, a_stalled_disk_holds_up_one_container),
    ("a_stalled_file_holds_up_one_container_and_loses_nothing", FAKE, a_stalled_file_holds_up_one_container),
    ("an_exit_is_told_while_the_disk_stalls", EVERY, an_exit_is_told_while_the_disk_stalls),
    (
        "an_exit_that_waits_for_the_disk_outlives_the_shim",
        EVERY,
        an_exit_that_waits_for_the_disk_outlives_the_shim,
    ),
    ("an_execs_exit_waits_for_its_file", FAKE, an_execs_exit_waits_for_its_file),
    ("a_pod_that_ends_while_the_disk_stalls_leaves_its_log", FAKE, a_pod_that_ends_leaves_its_log),
    ("a_shim_that_is_killed_while_the_disk_stalls_is_gone", FAKE, a_shim_that_is_killed_is_gone),
    (
        "a_root_on_a_stalled_disk_holds_up_one_container",
        REAL,
        a_root_on_a_stalled_disk_holds_up_one_container,
    ),
    ("an_unmount_that_hangs_holds_no_delete_up", REAL, an_unmount_that_hangs_holds_no_delete_up),
    ("reopening_waits_for_the_disk_alone", FAKE, reopening_waits_for_the_disk_alone),
];

/// More lines than all pipes and queues on the way hold.
const LINES: usize = 400_000;

/// A disk that answers or not, as the test says.
struct Disk {
    point: PathBuf,
}

impl Disk {
    fn at(world: &World, point: PathBuf) -> Disk {
        let image = world.dir().join("disk.ext4");
        run("mke2fs", &["-q", "-t", "ext4", text(&image), "64M"]);
        fs::create_dir_all(&point).unwrap();
        run("mount", &["-o", "loop", text(&image), text(&point)]);
        fs::remove_dir(point.join("lost+found")).unwrap();
        Disk { point }
    }

    /// Below the log of a container.
    fn of_log(world: &World, id: &str) -> Disk {
        Disk::at(world, world.dir().join("logs").join(id))
    }

    fn stall(&self) {
        run("fsfreeze", &["-f", text(&self.point)]);
    }

    fn answer(&self) {
        run("fsfreeze", &["-u", text(&self.point)]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also when the test fails, or whatever waits for it would be left behind.
        let quietly = |program: &str, arguments: &[&str]| {
            let _done = std::process::Command::new(program).args(arguments).output().is_ok();
        };
        quietly("fsfreeze", &["-u", text(&self.point)]);
        quietly("umount", &["-l", text(&self.point)]);
    }
}

fn gate(world: &World) -> PathBuf {
    let gate = world.shared().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    gate
}

/// Says `LINES` numbers once the gate is open.
fn script(world: &World) -> String {
    let (gate, done) = (world.shared_path("gate"), world.shared_path("done"));
    format!("echo ready; read line <{gate}; seq 1 {LINES}; echo >{done}; exit 3")
}

fn expected() -> String {
    let numbers: String = (1..=LINES).map(|number| format!("{number}\n")).collect();
    format!("ready\n{numbers}")
}

fn sync(pod: &Pod<'_>, id: &str) -> ExecSyncResponse {
    let process = serde_json::to_vec(&process(&["/bin/busybox", "echo", "answered"])).unwrap();
    let request = ExecSyncRequest { container_id: id.to_owned(), process, ..ExecSyncRequest::default() };
    Conn::open(&pod.agent_socket).call(shim_service::NAME, shim_service::EXEC_SYNC, &request).unwrap()
}

fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn waits_for_the_disk(task: &Task<'_>) {
    until("the disk's silence in the state", || (task.view().log_stalled_since != 0).then_some(()));
}

/// Stalls the disk below the log of a task that is about to write a lot.
fn stall_under(task: &Task<'_>, disk: &Disk, gate: &Path) {
    task.log.says("ready");
    disk.stall();
    fs::write(gate, "go\n").unwrap();
    waits_for_the_disk(task);
}

fn a_stalled_disk_holds_up_one_container(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::of_log(world, "c1");
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script(world)));
    task.log.says("ready");
    assert_eq!(task.view().log_stalled_since, 0);
    let before = resident(pod.shim.pid);
    disk.stall();
    fs::write(&gate, "go\n").unwrap();
    waits_for_the_disk(&task);
    let since = task.view().log_stalled_since;
    // Everything else goes on.
    assert_eq!(sync(&pod, "c1").stdout, b"answered\n", "an exec beside it");
    let other = Task::start(&pod.shim, "c2", Spec::sh("seq 1 20000; exit 5"));
    assert_eq!(other.wait(), 5);
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(other.log.text("stdout") == numbers, "all of another one's log");
    other.delete().unwrap();
    assert!(!world.shared().join("done").exists(), "it waits, since nothing of it is dropped");
    assert_eq!(task.view().log_stalled_since, since, "it is the same stall");
    let grown = resident(pod.shim.pid) - before;
    assert!(grown < 2048, "the shim grew by {grown} KiB");
    disk.answer();
    assert_eq!(task.wait(), 3);
    assert!(task.log.text("stdout") == expected(), "every line, once, in order");
    assert_eq!((task.view().log_stalled_since, task.view().log_dropped_bytes), (0, 0));
    task.delete().unwrap();
}

fn a_stalled_file_holds_up_one_container(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::at(world, world.dir().join("files"));
    let file = disk.point.join("out");
    let streams = Streams { stdout: format!("file://{}", file.display()), ..Streams::default() };
    let task = Task::create_with(&pod.shim, "c1", Spec::sh(&script(world)), streams).unwrap();
    task.begin().unwrap();
    until("its first word", || (fs::read_to_string(&file).ok()? == "ready\n").then_some(()));
    disk.stall();
    fs::write(&gate, "go\n").unwrap();
    waits_for_the_disk(&task);
    let other = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
    assert_eq!(other.wait(), 5);
    assert!(!world.shared().join("done").exists());
    disk.answer();
    assert_eq!(task.wait(), 3);
    assert!(fs::read_to_string(&file).unwrap() == expected(), "every byte, once, in order");
    task.delete().unwrap();
}

fn an_exit_is_told_while_the_disk_stalls(world: &World) {
    let pod = Pod::start(world);
    let disk = Disk::of_log(world, "c1");
    disk.stall();
    let task = Task::start(&pod.shim, "c1", Spec::sh("echo its last word; exit 4"));
    assert_eq!(task.wait(), 4);
    assert_ne!(task.view().log_stalled_since, 0, "the log cannot even be opened");
    assert_eq!(fs::read_dir(&disk.point).unwrap().count(), 0);
    task.delete().unwrap();
    // Its name is free, also for who writes to the same disk.
    let next = Task::start(&pod.shim, "c1", Spec::sh("echo of the next; exit 5"));
    assert_eq!(next.wait(), 5);
    next.delete().unwrap();
    disk.answer();
    until("both last words", || {
        let said = fs::read_to_string(&next.log.path).unwrap_or_default();
        (said.contains("its last word") && said.contains("of the next")).then_some(())
    });
}

/// The shim is lost after the end of a container and before anybody was told.
fn an_exit_that_waits_for_the_disk_outlives_the_shim(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::of_log(world, "c1");
    let script = format!("echo ready; read line <{}; echo its last word; exit 7", world.shared_path("gate"));
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script));
    task.log.says("ready");
    disk.stall();
    fs::write(&gate, "go\n").unwrap();
    let record = pod.agent_socket.with_extension("exits").join("c1");
    until("the record for the agent", || record.exists().then_some(()));
    assert_eq!(task.status(), ProcessStatus::Running, "its exit is not told yet");
    pod.shim.murder();
    let recorded = Ended::decode(fs::read(&record).unwrap().as_slice()).unwrap();
    assert_eq!((recorded.pid, recorded.exit.map(|exit| exit.code)), (task.pid, Some(7)), "to the agent");
    let deleted = call_program(world, "c1", "delete", &[]);
    let deleted = DeleteResponse::decode(deleted.stdout.as_slice()).unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (task.pid, 7), "to containerd");
    pod.shim.delete();
    disk.answer();
}

/// Whoever learns of its end reads its file next; a disk that never answers keeps nobody from learning it.
fn an_execs_exit_waits_for_its_file(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::at(world, world.dir().join("files"));
    let task = Task::start(&pod.shim, "c1", Spec::sh("exec sleep 1000"));
    let script = format!("read line <{}; echo its last word", world.shared_path("gate"));
    let end_on_stalled_disk = |id| {
        let file = disk.point.join(id);
        let streams = Streams { stdout: format!("file://{}", file.display()), ..Streams::default() };
        let exec = task.exec_with(id, &process(&["/bin/busybox", "sh", "-c", &script]), streams).unwrap();
        let pid = exec.begin().unwrap().pid;
        disk.stall();
        fs::write(&gate, "go\n").unwrap();
        until("its end", || is_gone(pid).then_some(()));
        (exec, file)
    };
    let (exec, file) = end_on_stalled_disk("e1");
    assert_eq!(exec.state().unwrap().status(), ProcessStatus::Running, "its exit is not told yet");
    disk.answer();
    assert_eq!(exec.wait(), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "its last word\n");
    let (exec, file) = end_on_stalled_disk("e2");
    assert_eq!(exec.wait(), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    exec.delete().unwrap();
    disk.answer();
    until("what it wrote", || (fs::read_to_string(&file).ok()? == "its last word\n").then_some(()));
}

fn a_pod_that_ends_leaves_its_log(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::of_log(world, "c1");
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script(world)));
    stall_under(&task, &disk, &gate);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
    let request = ShutdownSandboxRequest { sandbox_id: pod.shim.id.clone() };
    let ShutdownSandboxResponse {} =
        pod.shim.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request).unwrap();
    assert!(!pod.shim.socket().exists(), "nobody can come any more");
    disk.answer();
    pod.shim.ends();
    let said = task.log.text("stdout");
    assert!(
        expected().starts_with(&said) && said.len() > 128 << 10,
        "all that was read, in order: {}",
        said.len()
    );
}

fn a_shim_that_is_killed_is_gone(world: &World) {
    let (pod, gate) = (Pod::start(world), gate(world));
    let disk = Disk::of_log(world, "c1");
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script(world)));
    stall_under(&task, &disk, &gate);
    let mut client = pod.shim.connect();
    let request = ConnectRequest { id: "c1".to_owned() };
    let _: ConnectResponse = client.call(berth_proto::TASK_V3, task_service::CONNECT, &request).unwrap();
    pod.shim.murder();
    let answer: Option<ConnectResponse> =
        client.try_call(berth_proto::TASK_V3, task_service::CONNECT, &request);
    assert_eq!(answer, None, "whoever waits for it learns of its end");
    assert!(Conn::try_open(&pod.agent_socket).is_err(), "and nobody listens for it");
    assert_eq!(pod.shim.delete().exit_status, 137);
    until("the end of the container", || is_gone(task.pid).then_some(()));
    disk.answer();
}

/// The kernel makes directories for an overlay, which the disk does not answer.
fn a_root_on_a_stalled_disk_holds_up_one_container(world: &World) {
    let pod = Pod::start(world);
    let disk = Disk::at(world, world.dir().join("snapshots"));
    let (upper, work) = (disk.point.join("upper"), disk.point.join("work"));
    fs::create_dir(&upper).unwrap();
    fs::create_dir(&work).unwrap();
    let options = [
        format!("lowerdir={}", text(&base(world))),
        format!("upperdir={}", text(&upper)),
        format!("workdir={}", text(&work)),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let rootfs: Vec<Mount> = vec![mount("overlay", "overlay", &options)];
    disk.stall();
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| Task::create_on(&pod.shim, "c1", Spec::sh("exit 6"), rootfs).unwrap());
        until("the copy that mounts", || {
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.shim.pid)).unwrap();
            let mut children = children.split_whitespace();
            children.any(|pid| state_of(pid).is_some_and(|state| state == "D")).then_some(())
        });
        let other = Task::start(&pod.shim, "c2", Spec::sh("exit 5"));
        assert_eq!(other.wait(), 5);
        other.delete().unwrap();
        assert!(!creation.is_finished());
        disk.answer();
        let task = creation.join().unwrap();
        task.begin().unwrap();
        assert_eq!(task.wait(), 6);
        task.delete().unwrap();
    });
}

/// To unmount a file system is to write to it.
fn an_unmount_that_hangs_holds_no_delete_up(world: &World) {
    let begun = Instant::now();
    let pod = Pod::start(world);
    let disk = Disk::at(world, world.dir().join("images"));
    let image = disk.point.join("image.ext4");
    run("mke2fs", &["-q", "-t", "ext4", "-d", text(&base(world)), text(&image), "24M"]);
    let is_in_use = || devices(world).iter().any(|file| Path::new(file) == image);
    let rootfs = vec![mount("ext4", &image, &["rw", "loop"])];
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("exec sleep 1000"), rootfs).unwrap();
    task.begin().unwrap();
    let other = Task::start(&pod.shim, "c2", Spec::sh("exec sleep 1000"));
    let made = begun.elapsed();
    pod.shim.murder();
    disk.stall();
    let answer = pod.shim.delete_in_time(made);
    assert_eq!(answer.exit_status, 137);
    assert!(is_gone(task.pid) && is_gone(other.pid));
    assert!(is_in_use(), "it is still being unmounted");
    disk.answer();
    until("its end", || (!is_in_use()).then_some(()));
}

fn state_of(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().next().map(str::to_owned)
}

fn reopening_waits_for_the_disk_alone(world: &World) {
    let pod = Pod::start(world);
    let disk = Disk::of_log(world, "c1");
    let task = Task::start(&pod.shim, "c1", Spec::sh("echo ready; exec sleep 1000"));
    task.log.says("ready");
    fs::rename(&task.log.path, task.log.path.with_extension("moved")).unwrap();
    disk.stall();
    let request = ReopenLogRequest { container_id: "c1".to_owned() };
    let mut client = Conn::open(&pod.agent_socket);
    let call = client.begin(shim_service::NAME, shim_service::REOPEN_LOG, &request);
    waits_for_the_disk(&task);
    assert_eq!(sync(&pod, "c1").stdout, b"answered\n");
    disk.answer();
    let ReopenLogResponse {} = client.end(call).unwrap();
    assert!(task.log.path.exists());
}
