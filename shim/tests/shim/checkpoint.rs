//! Checkpoints: written, refused, restored, and what is left when that fails.
//!
//! With the fake runtime for what is the shim's own, with runc and criu for the containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_proto::process::Status;
use berth_proto::runc::CheckpointOptions;
use berth_proto::task::{
    CheckpointTaskRequest, CreateTaskRequest, CreateTaskResponse, PauseRequest, ResumeRequest, task_service,
};
use berth_proto::ttrpc::{self, Code};
use berth_proto::types::Mount;
use berth_shim_conformance::fake_runtime;

use crate::harness::{Pod, Runtime, Shim, Spec, Streams, Task, World, process, until};
use crate::{Case, FAKE};

/// runc and a criu that works on this kernel.
const CRIU: &[Runtime] = &[Runtime::RuncWithCriu];
const EVERY: &[Runtime] = &[Runtime::Fake, Runtime::RuncWithCriu];

pub(crate) const CASES: &[Case] = &[
    ("the_runtime_is_told_every_option", FAKE, the_runtime_is_told_every_option),
    ("a_container_goes_on_after_its_checkpoint", EVERY, a_container_goes_on_after_its_checkpoint),
    ("a_container_ends_with_its_checkpoint", EVERY, a_container_ends_with_its_checkpoint),
    ("a_paused_container_is_saved", CRIU, a_paused_container_is_saved),
    ("a_restored_container_goes_on_where_it_was", CRIU, a_restored_container_goes_on_where_it_was),
    ("a_restored_container_is_one_like_any_other", CRIU, a_restored_container_is_one_like_any_other),
    ("a_restored_container_has_its_terminal", CRIU, a_restored_container_has_its_terminal),
    ("a_restored_member_is_in_its_pod", CRIU, a_restored_member_is_in_its_pod),
    (
        "a_prepared_container_is_deleted_without_a_trace",
        EVERY,
        a_prepared_container_is_deleted_without_a_trace,
    ),
    ("a_failed_restore_leaves_nothing_behind", FAKE, a_failed_restore_leaves_nothing_behind),
    ("a_broken_checkpoint_is_not_restored", CRIU, a_broken_checkpoint_is_not_restored),
    ("criu_says_why_it_failed", FAKE, criu_says_why_it_failed),
    ("bad_paths_are_refused", FAKE, bad_paths_are_refused),
    ("a_clients_named_pipe_cannot_be_saved", FAKE, a_clients_named_pipe_cannot_be_saved),
    ("a_runtime_without_checkpoints_says_so", &[Runtime::Crun], a_runtime_without_checkpoints_says_so),
    ("the_sandbox_ends_under_a_checkpoint", FAKE, the_sandbox_ends_under_a_checkpoint),
    (
        "nothing_but_processes_comes_from_a_checkpoint_cve_2026_53492_cve_2026_50195_cve_2024_8676",
        FAKE,
        nothing_but_processes_comes_from_a_checkpoint,
    ),
];

/// Counts, in a file that it keeps open and in its output.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done";

fn save(shim: &Shim<'_>, id: &str, image: &Path, options: CheckpointOptions) -> Result<(), ttrpc::Status> {
    let request = CheckpointTaskRequest {
        id: id.to_owned(),
        path: image.display().to_string(),
        options: Some(berth_proto::pack(&options)),
    };
    shim.task(task_service::CHECKPOINT, &request)
}

/// A sandbox whose network has what every pod's has: criu finds out what the kernel can by way of it.
fn pod(world: &World) -> Pod<'_> {
    let pod = Pod::start(world);
    let pid = pod.shim.pid.to_string();
    let status = Command::new("nsenter").args(["-t", &pid, "-n", "ip", "link", "set", "lo", "up"]).status();
    assert!(status.unwrap().success());
    pod
}

fn ending() -> CheckpointOptions {
    CheckpointOptions { exit: true, ..CheckpointOptions::default() }
}

/// A container that is made from a checkpoint, with its output in files.
struct Restored<'s> {
    shim: &'s Shim<'s>,
    id: String,
    streams: Streams,
}

impl<'s> Restored<'s> {
    fn create(shim: &'s Shim<'s>, id: &str, spec: Spec, image: &Path) -> Result<Self, ttrpc::Status> {
        let world = shim.world;
        let terminal = spec.is_terminal();
        let bundle = make_bundle(world, id, spec);
        let uri = |stream: &str| format!("file://{}", world.dir().join(format!("{id}.{stream}")).display());
        let stderr = if terminal { String::new() } else { uri("stderr") };
        let streams = Streams { stdin: String::new(), stdout: uri("stdout"), stderr };
        let source = world.dir().join("rootfs").display().to_string();
        let options = vec!["rbind".to_owned(), "rw".to_owned()];
        let rootfs = Mount { r#type: "bind".to_owned(), source, target: String::new(), options };
        let request = CreateTaskRequest {
            id: id.to_owned(),
            bundle: bundle.display().to_string(),
            rootfs: vec![rootfs],
            options: shim.task_options.clone(),
            terminal,
            stdout: streams.stdout.clone(),
            stderr: streams.stderr.clone(),
            checkpoint: image.display().to_string(),
            ..CreateTaskRequest::default()
        };
        let CreateTaskResponse { pid } = shim.task(task_service::CREATE, &request)?;
        assert_eq!(pid, 0, "nothing is restored before the start");
        Ok(Self { shim, id: id.to_owned(), streams })
    }

    /// As any container.
    fn task(&self) -> Task<'s> {
        Task::adopt(self.shim, &self.id)
    }

    fn stdout(&self) -> String {
        fs::read_to_string(self.streams.stdout.trim_start_matches("file://")).unwrap_or_default()
    }

    fn says(&self, text: &str) {
        until(&format!("{text:?} in the output"), || self.stdout().contains(text).then_some(()));
    }
}

fn make_bundle(world: &World, id: &str, spec: Spec) -> PathBuf {
    let bundle = world.bundle(id);
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    let spec = spec.cgroup(&world.groups().named(id));
    fs::write(bundle.join("config.json"), spec.to_json()).unwrap();
    bundle
}

fn image(world: &World) -> PathBuf {
    world.dir().join("image")
}

fn topics(world: &World, last: &str) -> Vec<String> {
    let events =
        world.containerd.events_until(last, |events| events.iter().any(|event| event.brief() == last));
    events.iter().map(|event| event.brief()).collect()
}

fn the_runtime_is_told_every_option(world: &World) {
    let pod = Pod::start(world);
    let _task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let options = CheckpointOptions {
        open_tcp: true,
        external_unix_sockets: true,
        terminal: true,
        file_locks: true,
        empty_namespaces: vec!["network".to_owned()],
        cgroups_mode: "soft".to_owned(),
        work_path: world.dir().join("work").display().to_string(),
        ..CheckpointOptions::default()
    };
    save(&pod.shim, "c1", &image(world), options).unwrap();
    let told = flags(&image(world).join("inventory.img"));
    let expected = [
        "image-path",
        "work-path",
        "leave-running",
        "tcp-established",
        "ext-unix-sk",
        "shell-job",
        "file-locks",
        "empty-ns",
        "manage-cgroups-mode",
    ];
    assert_eq!(told, expected);
    assert!(world.dir().join("work").is_dir(), "the client's own directory stays");
    let restored = Restored::create(&pod.shim, "c2", Spec::sh("exit 0"), &image(world)).unwrap();
    restored.task().begin().unwrap();
    let expected = [
        "detach",
        "image-path",
        "work-path",
        "tcp-established",
        "ext-unix-sk",
        "file-locks",
        "bundle",
        "pid-file",
    ];
    let told = flags(&image(world).join(fake_runtime::RESTORED));
    assert_eq!(told, expected, "what was allowed to be saved is restored");
    let options = CheckpointOptions { cgroups_mode: "hard".to_owned(), ..CheckpointOptions::default() };
    let refused = save(&pod.shim, "c1", &world.dir().join("other"), options).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
}

/// What the fake runtime was called with, besides what every call has.
fn flags(note: &Path) -> Vec<String> {
    let told = fs::read_to_string(note).unwrap();
    let own = told.split(' ').filter(|flag| !matches!(*flag, "root" | "log" | "log-format"));
    own.map(str::to_owned).collect()
}

fn a_container_goes_on_after_its_checkpoint(world: &World) {
    let pod = pod(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh(COUNTER));
    task.log.says("3");
    save(&pod.shim, "c1", &image(world), CheckpointOptions::default()).unwrap();
    assert!(image(world).join("inventory.img").exists());
    let lines = task.log.text("stdout").lines().count();
    until("more output", || (task.log.text("stdout").lines().count() > lines + 2).then_some(()));
    assert_eq!(task.status(), Status::Running);
    let again = save(&pod.shim, "c1", &image(world), CheckpointOptions::default()).unwrap_err();
    assert_eq!(again.code, Code::AlreadyExists, "no checkpoint is written into another");
    let left: Vec<_> = fs::read_dir(&task.bundle).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("criu")), "{left:?}");
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
    let expected = ["create c1", "start c1", "checkpointed c1", "exit c1", "delete c1"];
    assert_eq!(topics(world, "delete c1"), expected);
}

fn a_container_ends_with_its_checkpoint(world: &World) {
    let pod = pod(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh(COUNTER));
    task.log.says("3");
    save(&pod.shim, "c1", &image(world), ending()).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(task.status(), Status::Stopped);
    assert_eq!(task.delete().unwrap().exit_status, 137);
    let expected = ["create c1", "start c1", "checkpointed c1", "exit c1", "delete c1"];
    assert_eq!(topics(world, "delete c1"), expected);
}

fn a_paused_container_is_saved(world: &World) {
    let pod = pod(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh(COUNTER));
    task.log.says("3");
    let (): () = pod.shim.task(task_service::PAUSE, &PauseRequest { id: "c1".to_owned() }).unwrap();
    save(&pod.shim, "c1", &image(world), CheckpointOptions::default()).unwrap();
    assert_eq!(task.status(), Status::Paused);
    let (): () = pod.shim.task(task_service::RESUME, &ResumeRequest { id: "c1".to_owned() }).unwrap();
    let lines = task.log.text("stdout").lines().count();
    until("more output", || (task.log.text("stdout").lines().count() > lines + 2).then_some(()));
}

/// Saves a container of its own shim, and takes it away.
fn saved(world: &World, spec: &Spec, ready: &str) {
    let shim = Shim::start_plain(world, "c1", spec);
    let task = Task::start(&shim, "c1", spec.clone());
    task.log.says(ready);
    save(&shim, "c1", &image(world), ending()).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

fn a_restored_container_goes_on_where_it_was(world: &World) {
    let spec = Spec::sh(COUNTER);
    saved(world, &spec, "7");
    let shim = Shim::start_plain(world, "c2", &spec);
    let restored = Restored::create(&shim, "c2", spec, &image(world)).unwrap();
    let task = restored.task();
    assert_eq!((task.status(), task.state().unwrap().pid), (Status::Created, 0));
    let started = task.begin().unwrap();
    assert!(started.pid > 0);
    until("output", || (restored.stdout().lines().count() > 3).then_some(()));
    let first: u32 = restored.stdout().lines().next().unwrap().parse().unwrap();
    assert!(first > 7, "it went on at {first}");
    let state = task.state().unwrap();
    assert_eq!((state.status(), state.pid), (Status::Running, started.pid));
    assert!(task.pids().unwrap().contains(&started.pid));
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(task.delete().unwrap().exit_status, 137);
    let events = topics(world, "delete c2");
    let of_restored: Vec<&str> =
        events.iter().map(String::as_str).filter(|event| event.ends_with("c2")).collect();
    assert_eq!(of_restored, ["create c2", "start c2", "exit c2", "delete c2"]);
}

/// Execs, limits and the count of what ran out of memory, a further checkpoint.
fn a_restored_container_is_one_like_any_other(world: &World) {
    let script = "while [ ! -e /shared/go ]; do sleep 0.05; done; tail /dev/zero; echo greedy $?; sleep 1000";
    let spec = Spec::sh(&format!("echo ready; {script}")).memory_limit(32 << 20);
    saved(world, &spec, "ready");
    let shim = Shim::start_plain(world, "c2", &spec);
    let restored = Restored::create(&shim, "c2", spec, &image(world)).unwrap();
    let task = restored.task();
    task.begin().unwrap();
    let exec = task.exec("e1", &process(&["/bin/busybox", "sh", "-c", "cat /proc/1/comm; exit 3"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 3);
    until("the exec's output", || (exec.stdout() == "busybox\n").then_some(()));
    exec.delete().unwrap();
    save(&shim, "c2", &world.dir().join("second"), CheckpointOptions::default()).unwrap();
    fs::write(world.shared().join("go"), "").unwrap();
    restored.says("greedy 137");
    world.containerd.event("oom c2");
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(task.view().exit.unwrap().oom_kills, 1);
}

fn a_restored_container_has_its_terminal(world: &World) {
    let spec = Spec::sh("i=0; while :; do i=$((i+1)); echo $i $(stty size); sleep 0.05; done").terminal();
    let shim = Shim::start_plain(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec.clone());
    task.resize(11, 22).unwrap();
    task.log.says(" 22 11");
    save(&shim, "c1", &image(world), ending()).unwrap();
    task.wait();
    task.delete().unwrap();
    let shim = Shim::start_plain(world, "c2", &spec);
    let restored = Restored::create(&shim, "c2", spec, &image(world)).unwrap();
    let task = restored.task();
    task.begin().unwrap();
    task.resize(77, 33).unwrap();
    restored.says(" 33 77");
}

/// The namespaces that a member shares are those of the pod it is restored in.
fn a_restored_member_is_in_its_pod(world: &World) {
    let kinds = ["network", "ipc", "uts"];
    let spec = Spec::sh("echo ready; while :; do sleep 0.05; done").sharing(&kinds);
    let pod = pod(world);
    let task = Task::start(&pod.shim, "c1", spec.clone());
    task.log.says("ready");
    save(&pod.shim, "c1", &image(world), ending()).unwrap();
    task.wait();
    task.delete().unwrap();
    let restored = Restored::create(&pod.shim, "c2", spec, &image(world)).unwrap();
    let pid = restored.task().begin().unwrap().pid;
    for kind in ["net", "ipc", "uts"] {
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        assert_eq!(of(pid), of(pod.shim.pid), "{kind}");
    }
    pod.stop().unwrap();
    assert_eq!(restored.task().wait(), 137);
}

fn any_image(world: &World) -> PathBuf {
    let image = image(world);
    fs::create_dir_all(&image).unwrap();
    fs::write(image.join("inventory.img"), "").unwrap();
    image
}

fn a_prepared_container_is_deleted_without_a_trace(world: &World) {
    let pod = Pod::start(world);
    let restored = Restored::create(&pod.shim, "c1", Spec::sh("exit 0"), &any_image(world)).unwrap();
    let task = restored.task();
    assert!(task.is_mounted(), "what a client adds to the root file system comes before the start");
    assert_eq!(task.kill(9).unwrap_err().code, Code::NotFound);
    assert_eq!(task.pids().unwrap(), [0]);
    let deleted = task.delete().unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (0, 0));
    assert!(!task.is_mounted());
    assert_eq!(topics(world, "delete c1"), ["create c1", "delete c1"]);
}

fn a_failed_restore_leaves_nothing_behind(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("exit 0").annotation(fake_runtime::CRIU, "fail:Can't open file /gone");
    let restored = Restored::create(&pod.shim, "c1", spec, &any_image(world)).unwrap();
    let task = restored.task();
    let failure = task.begin().unwrap_err();
    assert_eq!(failure.code, Code::Internal);
    assert!(failure.message.contains("Can't open file /gone"), "{failure:?}");
    assert_eq!(task.status(), Status::Created, "it may be tried again, or deleted");
    assert!(task.bundle.join("criu-restore.log").exists());
    task.begin().unwrap_err();
    task.delete().unwrap();
    assert_eq!(topics(world, "delete c1"), ["create c1", "delete c1"]);
}

fn a_broken_checkpoint_is_not_restored(world: &World) {
    let spec = Spec::sh(COUNTER);
    saved(world, &spec, "3");
    let victim = fs::read_dir(image(world)).unwrap().flatten().map(|entry| entry.path());
    let mut pages = victim.filter(|path| path.to_string_lossy().contains("/pagemap-"));
    fs::write(pages.next().expect("pages"), "nonsense").unwrap();
    let shim = Shim::start_plain(world, "c2", &spec);
    let restored = Restored::create(&shim, "c2", spec, &image(world)).unwrap();
    let failure = restored.task().begin().unwrap_err();
    assert_eq!(failure.code, Code::Internal);
    assert!(failure.message.contains("criu says: "), "{failure:?}");
    restored.task().delete().unwrap();
}

fn criu_says_why_it_failed(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("sleep 1000").annotation(fake_runtime::CRIU, "fail:Can't dump socket");
    let task = Task::start(&pod.shim, "c1", spec);
    let failure = save(&pod.shim, "c1", &image(world), ending()).unwrap_err();
    assert_eq!(failure.code, Code::Internal);
    assert!(failure.message.contains("criu says: Can't dump socket"), "{failure:?}");
    assert!(!image(world).exists(), "half a checkpoint is none");
    assert_eq!(task.status(), Status::Running);
    assert!(task.bundle.join("criu-dump.log").exists());
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
}

fn bad_paths_are_refused(world: &World) {
    let pod = Pod::start(world);
    let _task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    for path in ["", "image", "/tmp/../image", "/dev/null"] {
        let refused = save(&pod.shim, "c1", Path::new(path), CheckpointOptions::default()).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{path}");
        if !path.is_empty() {
            let restored = Restored::create(&pod.shim, "c2", Spec::sh("exit 0"), Path::new(path));
            assert_eq!(restored.map(|_| ()).unwrap_err().code, Code::InvalidArgument, "{path}");
        }
    }
    let empty = world.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let restored = Restored::create(&pod.shim, "c2", Spec::sh("exit 0"), &empty).map(|_| ()).unwrap_err();
    assert!(restored.message.contains("no whole checkpoint"), "{restored:?}");
}

fn a_clients_named_pipe_cannot_be_saved(world: &World) {
    let pod = Pod::start(world);
    let pipe = world.dir().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let streams = Streams { stdout: pipe.display().to_string(), ..Streams::default() };
    let task = Task::create_with(&pod.shim, "c1", Spec::sh("sleep 1000"), streams).unwrap();
    task.begin().unwrap();
    let refused = save(&pod.shim, "c1", &image(world), CheckpointOptions::default()).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains("named pipe"), "{refused:?}");
}

/// Debian's crun was built without criu for long; now that it is, there is no criu to be found.
fn a_runtime_without_checkpoints_says_so(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let refused = save(&pod.shim, "c1", &image(world), CheckpointOptions::default()).unwrap_err();
    assert_eq!(refused.code, Code::Unimplemented, "{refused:?}");
    assert_eq!(task.status(), Status::Running);
    let restored = Restored::create(&pod.shim, "c2", Spec::sh("exit 0"), &any_image(world)).unwrap();
    assert_eq!(restored.task().begin().unwrap_err().code, Code::Unimplemented);
    restored.task().delete().unwrap();
}

fn the_sandbox_ends_under_a_checkpoint(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000").annotation(fake_runtime::CRIU, "hang"));
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| save(&pod.shim, "c1", &image(world), CheckpointOptions::default()));
        until("the checkpoint", || image(world).exists().then_some(()));
        assert_eq!(task.delete().unwrap_err().code, Code::FailedPrecondition);
        pod.stop().unwrap();
        saving.join().unwrap().unwrap_err();
    });
    assert_eq!(task.wait(), 137);
}

/// Whatever a checkpoint's directory holds besides, the container is what its own bundle says.
fn nothing_but_processes_comes_from_a_checkpoint(world: &World) {
    let image = any_image(world);
    let evil =
        br#"{"annotations":{"cdi.k8s.io/evil":"vendor.com/device=all","berth.test/criu":"fail:evil"}}"#;
    for name in ["config.json", "spec.dump", "config.dump", "berth.json", "descriptors.json"] {
        fs::write(image.join(name), evil).unwrap();
    }
    let pod = Pod::start(world);
    let restored = Restored::create(&pod.shim, "c1", Spec::sh("exit 5"), &image).unwrap();
    let task = restored.task();
    task.begin().unwrap();
    assert_eq!(task.wait(), 5);
    let config = fs::read_to_string(task.bundle.join("config.json")).unwrap();
    assert!(!config.contains("evil"), "{config}");
}
