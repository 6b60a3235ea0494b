use std::{fs, path::Path};

use berth_core::{
    config::{CgroupSettings, CgroupVersion},
    id::{ContainerId, ContainerName},
    observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
    record::ContainerRecord,
    spec::{Resize, Source},
    time::Mono,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{
    config::{Facts, KubeletFlags, Settings},
    manifest::{Origin, read},
    mark,
};

fn config(root: &Path) -> Config {
    let mut settings = Settings::load(KubeletFlags::parse(&["--hostname-override=node"]).unwrap()).unwrap();
    settings.kubelet.fail_cgroup_v1 = Some(false);
    let mut config = settings.resolve(&Facts::gather(Path::new("/")).unwrap()).unwrap();
    config.node.cgroups = CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/");
    config.node.paths.root = root.display().to_string();
    config
}

/// A pod with a record.
fn recorded_pod() -> (PodRecord, Arc<Pod>) {
    let text =
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i}]}}";
    let seen = Timestamp::UNIX_EPOCH;
    let origin = Origin { source: Source::File, place: "web.yaml", node: "node", seen };
    let pod = Arc::clone(&read(text, &origin).unwrap()[0].pod);
    let record = PodRecord { sandbox_id: SandboxId::from_known("recorded"), ..PodRecord::first(&pod, seen) };
    (record, pod)
}

/// What containerd has: a sandbox, a container of a pod without one, a sandbox that is up without a record, and another's pod.
fn found() -> ObservedNode {
    let sandbox = ObservedSandbox {
        id: SandboxId::from_known("observed"),
        pod: PodUid::new("has-a-sandbox"),
        attempt: 0,
        ready: false,
        pid: 0,
    };
    let container = ObservedContainer {
        id: ContainerId::from_known("c"),
        pod: PodUid::new("has-a-container"),
        name: ContainerName::new("c"),
        attempt: 0,
        sandbox: None,
        hash: 0,
        task: ObservedTask::Absent,
    };
    let mut found = ObservedNode { foreign: [PodUid::new("foreign")].into(), ..ObservedNode::default() };
    found.observation.sandboxes = vec![sandbox];
    found.observation.containers = vec![container];
    found.observation.unrecorded = [SandboxId::from_known("unrecorded")].into();
    found
}

/// Directories that bear our mark, also where another agent has the pod in containerd by now.
#[test]
fn only_what_bears_our_mark_and_has_no_record_is_an_orphan() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let marked = ["left", "has-a-sandbox", "has-a-container", "recorded", "foreign"];
    for uid in marked.into_iter().chain(["bare"]) {
        fs::create_dir_all(root.path().join("pods").join(uid)).unwrap();
    }
    for uid in marked {
        mark::set(&root.path().join("pods").join(uid), &config.node.paths.run).unwrap();
    }
    let tree = Tree::at(&root.path().join("cgroup"));
    let recorded = [PodUid::new("recorded")].into();
    let expected = ["has-a-container", "has-a-sandbox", "left"].map(PodUid::new);
    assert_eq!(orphans(&config, &tree, recorded, &found()), expected);
}

/// As the next agent finds it when the last one ended while it wrote: each file is of before the resize, or of after it.
#[test]
fn a_pod_goes_on_with_what_it_was_admitted_with_whatever_of_a_resize_was_written() {
    let (record, _) = recorded_pod();
    let asking = |cpu: &str| -> Arc<str> {
        let mut manifest: Value = serde_json::from_str(&record.manifest).unwrap();
        manifest["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": cpu } });
        manifest.to_string().into()
    };
    let resize = Some(Resize { allocated: asking("500m"), generation: Some(2), unallocated: None });
    for (asks, resize) in [("500m", None), ("500m", resize.clone()), ("800m", resize)] {
        let is_pending = resize.is_some();
        let record = PodRecord { manifest: asking(asks), resize, ..record.clone() };
        let pod = super::recorded_pod(&record).unwrap();
        assert_eq!(pod.containers[0].resources.limits.cpu_milli, Some(500), "{asks} {is_pending}");
        assert_eq!((&pod.manifest, pod.resize.is_some()), (&record.manifest, is_pending));
    }
}

/// What is not known is a leftover, whose network is removed.
#[test]
fn sandboxes_of_records_and_of_the_runtime_are_known() {
    let expected = ["observed", "recorded", "unrecorded"].map(SandboxId::from_known);
    assert_eq!(known(&[recorded_pod()], &found()), expected.into());
}

#[test]
fn a_run_directory_has_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().canonicalize().unwrap().join("run");
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::symlink("run", dir.path().join("link")).unwrap();
    for name in ["run", "link", "link/", "./link/../run"] {
        let name = dir.path().join(name).display().to_string();
        assert_eq!(without_links(&name).unwrap(), run.display().to_string(), "{name}");
    }
    let error = without_links(&dir.path().join("none").display().to_string()).unwrap_err();
    assert!(error.to_string().starts_with("look up stateDir /"), "{error}");
}

/// One that an earlier agent saw run has ended when it is not there any more, whether its shim answered as this one began or not.
#[test]
fn containers_under_shims_of_others_are_known_to_have_begun() {
    let (mut record, pod) = recorded_pod();
    let [observed, recorded, made] = ["observed", "recorded", "made"].map(ContainerId::from_known);
    let run = ContainerRecord::begun(recorded.clone(), 0, Mono::default());
    record.containers.insert(ContainerName::new("c"), ContainerRecord { has_run: true, ..run.clone() });
    // An agent was killed before it was begun, or as it was.
    let run = ContainerRecord { id: made.clone(), has_run: false, ..run };
    record.containers.insert(ContainerName::new("d"), run);
    let of = |id: &ContainerId, task| ObservedContainer {
        id: id.clone(),
        task,
        ..found().observation.containers[0].clone()
    };
    let running = ObservedTask::Running { pid: 7, started_at: Timestamp::UNIX_EPOCH };
    let observation = Observation {
        containers: vec![
            of(&observed, running),
            of(&recorded, ObservedTask::Unknown),
            of(&made, ObservedTask::Absent),
        ],
        ..Observation::default()
    };
    let sandbox = SandboxId::from_known("s");
    let grouped = [&observed, &recorded, &made].map(|id| (id.clone(), sandbox.clone()));
    let (tasks, _) = served_before(&grouped, &vec![(record, pod)], &observation, Vec::new());
    assert_eq!([&observed, &recorded, &made].map(|id| tasks.has_run(id)), [true, true, false]);
}
