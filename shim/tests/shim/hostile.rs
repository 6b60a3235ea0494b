//! Input that is malformed ends in an error on that request, never in a panic or a hang.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use berth_proto::task::{
    CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse, KillRequest, WaitRequest,
    WaitResponse, task_service,
};
use berth_proto::{runc, ttrpc};
use serde_json::{Value, json};

use crate::harness::{Pod, Raw, Spec, Task, World, assert_refused, run, served_by};
use crate::{Case, EVERY, FAKE, RUNC};

pub(crate) const CASES: &[Case] = &[
    ("a_malformed_bundle_starts_no_shim", FAKE, a_malformed_bundle_starts_no_shim),
    ("a_malformed_bundle_makes_no_container", EVERY, a_malformed_bundle_makes_no_container),
    ("a_spec_of_wrong_types_makes_no_container", RUNC, a_spec_of_wrong_types_makes_no_container),
    ("a_spec_of_odd_types_is_survived", EVERY, a_spec_of_odd_types_is_survived),
    ("any_bootstrap_bytes_end_in_a_shim_or_an_error", FAKE, any_bootstrap_bytes_end),
    ("argument_garbage_is_refused", FAKE, argument_garbage_is_refused),
];

/// Makes `config.json` something that it should not be.
type Spoil = fn(&Path);

const SPOILS: [(&str, Spoil); 10] = [
    ("missing", |_path| {}),
    ("empty", |path| fs::write(path, "").unwrap()),
    ("not JSON", |path| fs::write(path, "\u{7f}ELF").unwrap()),
    ("half of one", |path| fs::write(path, r#"{"ociVersion":"1.1.0","annotations":{"#).unwrap()),
    ("of 100 MiB", |path| fs::File::create(path).unwrap().set_len(100 << 20).unwrap()),
    ("deep", |path| fs::write(path, "{\"a\":[".repeat(100_000)).unwrap()),
    ("a list", |path| fs::write(path, "[]").unwrap()),
    ("a link to itself", |path| symlink("config.json", path).unwrap()),
    ("a FIFO", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
    ("a directory", |path| fs::create_dir(path).unwrap()),
];

fn a_malformed_bundle_starts_no_shim(world: &World) {
    for (number, (what, spoil)) in SPOILS.into_iter().enumerate() {
        let raw = Raw::new(world, &format!("p{number}"));
        let config = raw.bundle.join("config.json");
        fs::remove_file(&config).unwrap();
        spoil(&config);
        assert_refused(what, &raw.start(&[]));
        assert_eq!(raw.shim_pid(), None, "{what}");
    }
    for annotations in [json!(7), json!([]), json!({"io.kubernetes.cri.sandbox-id": {"a": 1}})] {
        let config = json!({"ociVersion": "1.1.0", "annotations": annotations}).to_string();
        let raw = Raw::with_config(world, "annotated", config.as_bytes());
        assert_refused(&config, &raw.start(&[]));
    }
}

/// Asks for a container as containerd does.
fn create(world: &World, pod: &Pod<'_>, id: &str) -> Result<CreateTaskResponse, ttrpc::Status> {
    let binary_name = world.program().display().to_string();
    let request = CreateTaskRequest {
        id: id.to_owned(),
        bundle: world.bundle(id).display().to_string(),
        options: Some(berth_proto::pack(&runc::Options { binary_name, ..runc::Options::default() })),
        ..CreateTaskRequest::default()
    };
    pod.shim.task(task_service::CREATE, &request)
}

/// That the answer is an error, and the shim goes on.
fn refused(world: &World, pod: &Pod<'_>, id: &str, what: &str) {
    let error = create(world, pod, id).expect_err(what);
    assert!(!error.message.is_empty(), "{what}");
    assert_eq!(served_by(&pod.shim.socket()), pod.shim.pid, "after a bundle that is {what}");
}

fn bundle(world: &World, id: &str) -> PathBuf {
    let bundle = world.bundle(id);
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    bundle.join("config.json")
}

fn a_malformed_bundle_makes_no_container(world: &World) {
    let pod = Pod::start(world);
    for (number, (what, spoil)) in SPOILS.into_iter().enumerate() {
        let id = format!("c{number}");
        spoil(&bundle(world, &id));
        refused(world, &pod, &id, what);
    }
    refused(world, &pod, "nowhere", "a bundle that is not there");
    assert_eq!(pod.shim.state().tasks, []);
    let task = Task::start(&pod.shim, "good", Spec::sh("exit 7"));
    assert_eq!(task.wait(), 7);
}

/// Members that are something else, without which there is nothing to run.
fn wrong() -> [(&'static str, Value); 3] {
    [("/process", json!("sh")), ("/process/args", json!([])), ("/annotations", json!([1, 2]))]
}

/// Writes a good spec with one member that is something else.
fn spoil(world: &World, id: &str, pointer: &str, value: Value) {
    let mut spec: Value = serde_json::from_slice(&Spec::sh("true").to_json()).unwrap();
    *spec.pointer_mut(pointer).unwrap() = value;
    fs::write(bundle(world, id), spec.to_string()).unwrap();
}

fn a_spec_of_wrong_types_makes_no_container(world: &World) {
    let pod = Pod::start(world);
    for (number, (pointer, value)) in wrong().into_iter().enumerate() {
        let id = format!("c{number}");
        spoil(world, &id, pointer, value.clone());
        refused(world, &pod, &id, &format!("{pointer} {value}"));
    }
}

/// What a runtime makes of such a spec is its own: crun 1.28 takes a process that is none, and makes a container. The shim
/// must live, and rid itself of what was made.
fn a_spec_of_odd_types_is_survived(world: &World) {
    let pod = Pod::start(world);
    let odd = [
        ("/process/args", json!(7)),
        ("/linux", json!(null)),
        ("/linux/namespaces", json!({"type": "ipc"})),
        (
            "/linux/namespaces",
            json!([{"type": "mount"}, null, 1, {"type": 7, "path": 7}, {"path": "/proc/1/ns/ipc"}]),
        ),
        ("/mounts", json!("none")),
        ("/mounts", json!([[], {"destination": ["/dev/shm"]}])),
    ];
    for (number, (pointer, value)) in wrong().into_iter().chain(odd).enumerate() {
        let id = format!("c{number}");
        spoil(world, &id, pointer, value);
        if create(world, &pod, &id).is_ok() {
            let kill = KillRequest { id: id.clone(), signal: 9, ..KillRequest::default() };
            let (): () = pod.shim.task(task_service::KILL, &kill).unwrap();
            let wait = WaitRequest { id: id.clone(), ..WaitRequest::default() };
            let _: WaitResponse = pod.shim.task(task_service::WAIT, &wait).unwrap();
            let delete = DeleteRequest { id, ..DeleteRequest::default() };
            let _: DeleteResponse = pod.shim.task(task_service::DELETE, &delete).unwrap();
        }
        assert_eq!(served_by(&pod.shim.socket()), pod.shim.pid);
    }
}

/// The kept files, each by a process of its own. Many more are tried without one, see `src/hostile.rs`.
fn any_bootstrap_bytes_end(world: &World) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/bootstrap");
    let mut files: Vec<PathBuf> = fs::read_dir(corpus).unwrap().flatten().map(|entry| entry.path()).collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    let mut inputs: Vec<(String, Vec<u8>)> =
        files.iter().map(|file| (file.display().to_string(), fs::read(file).unwrap())).collect();
    inputs.push(("more than is read".to_owned(), vec![0; (4 << 20) + 1]));
    for (number, (what, bytes)) in inputs.iter().enumerate() {
        let raw = Raw::new(world, &format!("p{number}"));
        let output = raw.start(bytes);
        if output.status.success() {
            assert_eq!(Some(served_by(&crate::harness::address_of(&output))), raw.shim_pid(), "{what}");
        } else {
            assert_refused(what, &output);
        }
        raw.delete();
    }
}

fn argument_garbage_is_refused(world: &World) {
    let raw = Raw::new(world, "p1");
    let long = "x".repeat(100_000);
    for arguments in [
        &[][..],
        &["-id"],
        &["--"],
        &["-"],
        &["frobnicate"],
        &["-frob", "start"],
        &["-socket-fd", "99999999999999999999", "serve"],
        &["start"],
        &["-id", "", "start"],
        &["-id", "a/b", "start"],
        &["-id", "..", "start"],
        &["-id", &long, "start"],
        &["-id", "\u{1b}[2J", "start"],
    ] {
        let output = run(raw.bare().args(arguments), &[]);
        assert_refused(&format!("{arguments:?}"), &output);
    }
    let output = run(raw.bare().arg(OsStr::from_bytes(b"\xff\xfe")), &[]);
    assert_refused("arguments that are no text", &output);
    // What only `start` should call says why to `start`, on its standard output.
    for descriptor in ["0", "1", "99", "-1"] {
        let output = run(raw.bare().args(["-socket-fd", descriptor, "serve"]), &[]);
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.starts_with("failed to take over the listening socket"), "{descriptor}: {told}");
        assert_eq!(output.status.code(), Some(1));
    }
}
