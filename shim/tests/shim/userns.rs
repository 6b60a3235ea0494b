//! Pods with a user namespace (KEP-127).

use std::fs::{self, File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_proto::shim::{IdMapping, NamespaceMode, SandboxOptions};
use berth_proto::ttrpc::{Code, Status};
use berth_proto::types::{Mount, RuntimeInfo, RuntimeRequest};
use nix::mount::{MsFlags, mount};
use prost::Message;
use serde_json::{Value, json};

use crate::harness::{
    Bootstrap, Pod, SANDBOX_CONFIG, Shim, Spec, Task, World, create, make_netns, options, process, start,
    until,
};
use crate::namespaces::{held, of, released};
use crate::{Case, FAKE, REAL, RUNC};

pub(crate) const CASES: &[Case] = &[
    ("members_are_root_of_their_pod_alone", REAL, members_are_root_of_their_pod_alone),
    ("members_share_what_the_pods_root_owns", REAL, members_share_what_the_pods_root_owns),
    ("volumes_show_the_pods_owners", REAL, volumes_show_the_pods_owners),
    ("idmapped_volumes_are_announced", RUNC, idmapped_volumes_are_announced),
    ("processes_are_shared_within_the_maps", REAL, processes_are_shared_within_the_maps),
    ("the_nodes_network_goes_without_sysfs", REAL, the_nodes_network_goes_without_sysfs),
    ("a_member_may_have_its_own", REAL, a_member_may_have_its_own),
    ("other_maps_than_the_pods_are_refused", FAKE, other_maps_than_the_pods_are_refused),
    ("a_netns_of_another_owner_is_refused", FAKE, a_netns_of_another_owner_is_refused),
    ("unsafe_maps_are_refused", FAKE, unsafe_maps_are_refused),
    ("sysctls_are_written_by_the_pods_root", FAKE, sysctls_are_written_by_the_pods_root),
    ("no_user_namespace_outlives_the_pod", REAL, no_user_namespace_outlives_the_pod),
];

const ROOT: u32 = 100_000;
const IDS: u32 = 65_536;

fn maps() -> Vec<IdMapping> {
    vec![IdMapping { container_id: 0, host_id: ROOT, size: IDS }]
}

fn oci_maps(first: u32) -> Value {
    json!([{ "containerID": 0, "hostID": first, "size": IDS }])
}

/// A network namespace that is owned by a user namespace of these maps.
fn make_owned_netns(path: &Path, first: u32) -> PathBuf {
    let mut child = Command::new("unshare").args(["--user", "--net", "sleep", "1000"]).spawn().unwrap();
    let pid = child.id();
    until("the namespaces", || (of(pid, "net") != of(std::process::id(), "net")).then_some(()));
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{file}"), format!("0 {first} {IDS}")).unwrap();
    }
    File::create(path).unwrap();
    let source = format!("/proc/{pid}/ns/net");
    mount(Some(source.as_str()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    path.to_owned()
}

fn mapped(world: &World) -> SandboxOptions {
    SandboxOptions {
        uid_mappings: maps(),
        gid_mappings: maps(),
        ..options(world, &world.dir().join("agent.sock"))
    }
}

/// Lets a pod's root pass to its bundles, as containerd's directories do.
fn let_pass(world: &World) {
    fs::set_permissions(world.dir(), Permissions::from_mode(0o711)).unwrap();
}

fn start_pod<'w>(world: &'w World, change: impl FnOnce(&mut SandboxOptions)) -> Pod<'w> {
    let_pass(world);
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    // As containerd makes the bundle of a sandbox.
    fs::set_permissions(&shim.bundle, Permissions::from_mode(0o700)).unwrap();
    let mut options = mapped(world);
    change(&mut options);
    let netns = make_owned_netns(&world.dir().join("netns"), ROOT);
    create(&shim, &options, &netns).unwrap();
    let started = start(&shim).unwrap();
    Pod { shim, agent_socket: world.dir().join("agent.sock"), started }
}

/// A member of the user namespace, with the maps beside the path as clients of containerd write them.
fn member(script: &str, kinds: &[&str]) -> Spec {
    Spec::sh(script).sharing(kinds).with(|spec| {
        let user = json!({ "type": "user", "path": "/proc/1/ns/user" });
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(user);
        spec["linux"]["uidMappings"] = oci_maps(ROOT);
        spec["linux"]["gidMappings"] = oci_maps(ROOT);
    })
}

/// Creates a member on a root file system whose owners are mapped from `first` on, as snapshotters hand it down.
fn try_create<'s>(shim: &'s Shim<'s>, id: &str, spec: Spec, first: u32) -> Result<Task<'s>, Status> {
    let maps = ["uidmap", "gidmap"].map(|option| format!("{option}=0:{first}:{IDS}"));
    let rootfs = Mount {
        r#type: "bind".to_owned(),
        source: shim.world.dir().join("rootfs").display().to_string(),
        target: String::new(),
        options: std::iter::once("rbind".to_owned()).chain(maps).collect(),
    };
    Task::create_on(shim, id, spec, vec![rootfs])
}

fn run<'s>(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Task<'s> {
    let task = try_create(shim, id, spec, ROOT).unwrap();
    task.begin().unwrap();
    task
}

const PODS: [&str; 3] = ["network", "ipc", "uts"];

fn mount_sysfs(spec: Spec) -> Spec {
    spec.with(|spec| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.push(json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] }));
        mounts.push(json!({ "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"] }));
    })
}

fn members_are_root_of_their_pod_alone(world: &World) {
    let pod = start_pod(world, |_| ());
    let script = "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '; id -u; hostname; ls /sys/class/net; \
        stat -c %u:%g /; touch /tmp/made && stat -c %u:%g /tmp/made; echo done > /dev/stdout; exec sleep 1000";
    let task = run(&pod.shim, "c1", mount_sysfs(member(script, &PODS)));
    task.log.says("done");
    let map = format!(" 0 {ROOT} {IDS}\n");
    assert_eq!(task.log.text("stdout"), format!("{map}{map}0\nthe-pod\nlo\n0:0\n0:0\ndone\n"));
    let status = fs::read_to_string(format!("/proc/{}/status", task.pid)).unwrap();
    assert!(status.contains(&format!("Uid:\t{ROOT}\t")), "on the node it is nobody special: {status}");
    // An exec joins what the container is in.
    let exec = task.exec("e1", &process(&["/bin/cat", "/proc/self/uid_map"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 0);
    assert!(exec.stdout().contains(&ROOT.to_string()), "{}", exec.stdout());
}

fn members_share_what_the_pods_root_owns(world: &World) {
    let pod = start_pod(world, |_| ());
    let write = "ls -ld /dev/shm; echo hello > /dev/shm/word; exec sleep 1000";
    let first = run(&pod.shim, "c1", member(write, &PODS));
    let read = "until [ -s /dev/shm/word ]; do sleep 0.01; done; stat -c %u:%g /dev/shm /dev/shm/word";
    let second = run(&pod.shim, "c2", member(&format!("{read}; exec sleep 1000"), &PODS));
    second.log.says("0:0\n0:0\n");
    for file in ["user", "net", "ipc", "uts"] {
        assert_eq!(of(first.pid, file), of(second.pid, file), "{file}");
        assert_ne!(of(first.pid, file), of(std::process::id(), file), "{file}");
    }
    for file in ["net", "ipc", "uts"] {
        assert_eq!(of(first.pid, file), of(pod.shim.pid, file), "{file} of the sandbox's pid");
    }
    assert_ne!(of(first.pid, "user"), of(pod.shim.pid, "user"), "the shim keeps its rights");
}

fn volumes_show_the_pods_owners(world: &World) {
    let pod = start_pod(world, |_| ());
    let volume = world.dir().join("volume");
    fs::create_dir(&volume).unwrap();
    for (name, owner) in [("roots", 0), ("users", 1000)] {
        fs::write(volume.join(name), "").unwrap();
        chown(volume.join(name), Some(owner), Some(owner)).unwrap();
    }
    let script = "cd /volume; stat -c %n:%u:%g roots users; touch made && chown 7:8 made && echo done";
    let spec = member(script, &PODS).with(|spec| {
        for set in ["bounding", "effective", "permitted"] {
            let capabilities = spec["process"]["capabilities"][set].as_array_mut().unwrap();
            capabilities.push(json!("CAP_CHOWN"));
        }
        spec["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/volume", "type": "bind", "source": volume, "options": ["rbind", "rw", "idmap"],
            "uidMappings": oci_maps(ROOT), "gidMappings": oci_maps(ROOT),
        }));
    });
    let task = run(&pod.shim, "c1", spec);
    assert_eq!(task.wait(), 0, "{}", task.log.text("stderr"));
    assert_eq!(task.log.text("stdout"), "roots:0:0\nusers:1000:1000\ndone\n");
    use std::os::unix::fs::MetadataExt;
    let made = fs::metadata(volume.join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (7, 8), "the volume has no trace of the maps");
}

/// containerd refuses idmapped volumes of a runtime that does not say that it has them (`validateRuntimeFeatures`).
/// crun has no `features` before 1.9.
fn idmapped_volumes_are_announced(world: &World) {
    let options = berth_proto::pack(&mapped(world));
    let input = RuntimeRequest { options: Some(options), ..Default::default() };
    let mut stdin = tempfile::tempfile().unwrap();
    stdin.write_all(&input.encode_to_vec()).unwrap();
    stdin.rewind().unwrap();
    let shim = env!("CARGO_BIN_EXE_containerd-shim-berth-v1");
    let output = Command::new(shim).arg("-info").stdin(stdin).output().unwrap();
    let info = RuntimeInfo::decode(output.stdout.as_slice()).unwrap();
    let features: Value = serde_json::from_slice(&info.features.unwrap().value).unwrap();
    assert_eq!(features["linux"]["mountExtensions"]["idmap"]["enabled"], json!(true));
}

fn processes_are_shared_within_the_maps(world: &World) {
    let pod = start_pod(world, |options| options.pid = NamespaceMode::Pod.into());
    let kinds = ["network", "ipc", "uts", "pid"];
    let first = run(&pod.shim, "c1", member("echo ready; exec sleep 4711", &kinds));
    first.log.says("ready");
    let script = "ps -o user,pid,args; cat /proc/1/root/x /proc/1/environ; ls -A /proc/1/root; echo done";
    let second = run(&pod.shim, "c2", member(script, &kinds));
    assert_eq!(second.wait(), 0);
    let seen = second.log.text("stdout");
    assert!(seen.contains("sleep 4711") && seen.contains("berth-pod") && seen.contains("done"), "{seen}");
    assert!(!seen.contains("bin\n") && !seen.contains("PATH="), "nothing of the node: {seen}");
    assert_eq!(of(first.pid, "pid"), of(pod.started.pid, "pid"));
    assert_eq!(of(pod.started.pid, "user"), of(first.pid, "user"), "PID 1 is of the pod too");
    let status = fs::read_to_string(format!("/proc/{}/status", pod.started.pid)).unwrap();
    assert!(status.contains(&format!("Uid:\t{ROOT}\t")), "{status}");
    first.kill(9).unwrap();
    assert_eq!(first.wait(), 137);
    assert_eq!(pod.status().state, "SANDBOX_READY");
}

fn the_nodes_network_goes_without_sysfs(world: &World) {
    let_pass(world);
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    let options = SandboxOptions { uts: NamespaceMode::Node.into(), ..mapped(world) };
    create(&shim, &options, Path::new("")).unwrap();
    start(&shim).unwrap();
    let on_node =
        |script: &str| member(script, &["ipc"]).without_namespace("network").without_namespace("uts");
    let task = run(&shim, "c1", on_node("cat /proc/self/uid_map; exec sleep 1000"));
    task.log.says(&ROOT.to_string());
    for file in ["net", "uts"] {
        assert_eq!(of(task.pid, file), of(std::process::id(), file), "{file}");
    }
    assert_eq!(of(task.pid, "ipc"), of(shim.pid, "ipc"));
    // The kernel mounts /sys for the owner of the network only; what the node has can be shown.
    let shown = on_node("ls /sys/class/net").with(|spec| {
        spec["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "rro"],
        }));
    });
    let shown = run(&shim, "c2", shown);
    assert_eq!(shown.wait(), 0, "{}", shown.log.text("stderr"));
    assert!(shown.log.text("stdout").lines().any(|interface| interface == "lo"));
}

fn a_member_may_have_its_own(world: &World) {
    let pod = start_pod(world, |_| ());
    // Without a path: a new one, which the runtime makes with the member's own maps.
    let other = 300_000;
    let spec = Spec::sh("cat /proc/self/uid_map; exec sleep 1000").with(|spec| {
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "user" }));
        spec["linux"]["uidMappings"] = oci_maps(other);
        spec["linux"]["gidMappings"] = oci_maps(other);
    });
    let own = try_create(&pod.shim, "c1", spec, other).unwrap();
    own.begin().unwrap();
    own.log.says(&other.to_string());
    let shared = run(&pod.shim, "c2", member("exec sleep 1000", &PODS));
    let none = Task::start(&pod.shim, "c3", Spec::sh("exec sleep 1000"));
    assert_ne!(of(own.pid, "user"), of(shared.pid, "user"));
    assert_eq!(of(none.pid, "user"), of(std::process::id(), "user"));
}

fn other_maps_than_the_pods_are_refused(world: &World) {
    let pod = start_pod(world, |_| ());
    for (list, value) in [
        ("uidMappings", oci_maps(0)),
        ("gidMappings", oci_maps(ROOT + 1)),
        ("uidMappings", json!([{ "containerID": 0, "hostID": ROOT, "size": IDS + 1 }])),
        ("gidMappings", json!([{ "containerID": -1, "hostID": ROOT, "size": IDS }])),
        ("uidMappings", json!("all")),
    ] {
        let spec = member("exit 0", &PODS).with(|spec| spec["linux"][list] = value);
        let error = try_create(&pod.shim, "c1", spec, ROOT).map(|_| ()).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
        assert!(error.message.contains(list), "{error}");
    }
    let task = run(&pod.shim, "c1", member("exit 0", &PODS));
    assert_eq!(task.wait(), 0, "the name is free, and the pod's maps are taken");
}

fn a_netns_of_another_owner_is_refused(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    let netns = world.dir().join("netns");
    make_netns(&netns);
    create(&shim, &mapped(world), &netns).unwrap();
    let error = start(&shim).unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition, "{error}");
    assert!(error.message.contains("belongs to the node"), "{error}");
    nix::mount::umount(&netns).unwrap();
    make_owned_netns(&netns, ROOT + 1);
    let error = start(&shim).unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition, "{error}");
    assert!(error.message.contains("100001"), "{error}");
    assert_eq!(of(shim.pid, "net"), of(std::process::id(), "net"), "a start that fails changes nothing");
    nix::mount::umount(&netns).unwrap();
    make_owned_netns(&netns, ROOT);
    start(&shim).expect("the owner is the pod's now");
}

fn unsafe_maps_are_refused(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    let unsafe_maps: [fn(&mut SandboxOptions); 4] = [
        |options| options.uid_mappings[0].host_id = 0,
        |options| options.gid_mappings.clear(),
        |options| options.uid_mappings[0].container_id = 1,
        |options| options.pid = NamespaceMode::Node.into(),
    ];
    for change in unsafe_maps {
        let mut options = mapped(world);
        change(&mut options);
        let error = create(&shim, &options, Path::new("")).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    create(&shim, &mapped(world), Path::new("")).expect("a refused sandbox does not exist");
}

/// Groups in the value of a sysctl are the pod's, which only one who is in its user namespace can say.
fn sysctls_are_written_by_the_pods_root(world: &World) {
    let sysctls = [
        ("net.ipv4.ping_group_range", "0\t5"),
        ("net.ipv4.ip_default_ttl", "77"),
        ("kernel.shm_rmid_forced", "1"),
        ("fs.mqueue.msg_max", "20"),
        ("kernel.domainname", "pods"),
    ];
    let pod = start_pod(world, |options| {
        options.sysctls.extend(sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())));
    });
    let inside = |file: &str, user: &str| {
        let (pid, file) = (pod.shim.pid.to_string(), format!("/proc/sys/{file}"));
        let output =
            Command::new("nsenter").args(["-t", &pid, "-n", "-i", "-u", "cat", &file]).output().unwrap();
        assert!(output.status.success(), "{user}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for (name, value) in &sysctls[1..] {
        assert_eq!(inside(&name.replace('.', "/"), name), *value, "{name}");
    }
    assert_eq!(inside("net/ipv4/ping_group_range", "node"), format!("{ROOT}\t{}", ROOT + 5));
}

fn no_user_namespace_outlives_the_pod(world: &World) {
    let kinds = ["network", "ipc", "uts", "pid"];
    let pod = start_pod(world, |options| options.pid = NamespaceMode::Pod.into());
    let task = run(&pod.shim, "c1", member("exec sleep 1000", &kinds));
    let held = held(&["user", "ipc", "uts", "pid"].map(|file| of(task.pid, file)));
    pod.stop().unwrap();
    assert_eq!(task.wait(), 137);
    pod.shutdown();
    released(&held, Path::new(""));
}
