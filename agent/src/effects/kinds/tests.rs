use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    cgroup::CgroupValues,
    cluster::node,
    id::{ContainerId, ContainerName, ImageRef, OpId, PodName, PodUid, SandboxId, VolumeName},
    image::{
        ImageConfig, ImageInfo, WantedImage,
        collection::{Reason, Removal, StoredImage},
    },
    oci::{ContainerPlan, HostDevices, ImageVolume},
    pod::port::{
        cgroup::CgroupRequest,
        hook::{HookCall, HookRequest},
        network::{NetnsRequest, NetworkRequest},
        probe::{ExecProbe, ProbeCall, ProbeRequest},
        removal::RemoveContainerRequest,
        resize::{MemoryCheck, ResizeRequest},
        rootfs::RootfsRequest,
        sandbox::SandboxRequest,
        signal::{SignalRequest, StopSignal},
        start::{StartRequest, TaskRequest},
        termination::TerminationMessageRequest,
        volume::{Backing, VolumeRequest},
    },
    record::PodRecord,
    selinux::Relabel,
    spec::{HookMoment, HostPathType, Pod, ProbeKind, QosClass, Source, Volume, VolumeSource},
    status::{Note, PodEvent, Severity},
};
use jiff::Timestamp;
use oci_spec::runtime::LinuxResources;

use super::*;
use crate::manifest::{Origin, read};

const POD: &str =
    "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i}]}}";

fn pod() -> Arc<Pod> {
    let seen = Timestamp::UNIX_EPOCH;
    let origin = Origin { source: Source::File, place: "web.yaml", node: "node", seen };
    Arc::clone(&read(POD, &origin).unwrap()[0].pod)
}

fn image() -> Arc<ImageInfo> {
    Arc::new(ImageInfo {
        name: "i".into(),
        id: "sha256:ab".into(),
        tag: None,
        repo_digest: None,
        chain_id: "sha256:cd".into(),
        size_bytes: 1,
        config: ImageConfig::default(),
    })
}

fn record() -> Box<PodRecord> {
    Box::new(PodRecord::first(&pod(), Timestamp::UNIX_EPOCH))
}

pub(in crate::effects) fn start() -> Box<StartRequest> {
    let pod = pod();
    Box::new(StartRequest {
        target: None,
        unplanned: None,
        id: ContainerId::from_known("c1"),
        attempt: 0,
        sandbox: SandboxId::of(&pod.uid, 0),
        container: Arc::clone(&pod.containers[0]),
        pod,
        image: image(),
        plan: ContainerPlan {
            spec: Default::default(),
            seccomp_file: None,
            app_armor: None,
            vm_label: None,
            relabel: None,
            host_devices: HostDevices::None,
            devices: Vec::new(),
            files: Vec::new(),
            image_volumes: Vec::new(),
            sub_paths: Vec::new(),
            mount_sources: Vec::new(),
            log_path: String::new(),
            labels: [].into(),
            warnings: Vec::new(),
        },
    })
}

/// What the table says of an effect: name, lane, seconds to its deadline, and what it blocks.
type Row = (&'static str, Option<Lane>, u64, Option<&'static str>);

fn sandbox() -> SandboxId {
    SandboxId::from_known("s1")
}

fn container() -> ContainerId {
    ContainerId::from_known("c1")
}

fn network() -> Box<NetworkRequest> {
    Box::new(NetworkRequest { sandbox: sandbox(), pod: pod() })
}

fn tcp() -> ProbeCall {
    ProbeCall::Tcp { host: "10.0.0.1".into(), port: 80 }
}

fn command() -> ProbeCall {
    ProbeCall::Exec(ExecProbe { sandbox: sandbox(), command: vec!["true".into()] })
}

fn probe(call: ProbeCall) -> Box<ProbeRequest> {
    let (id, kind) = (container(), ProbeKind::Liveness);
    Box::new(ProbeRequest { id, kind, call, timeout: Duration::from_secs(3) })
}

fn hook() -> Box<HookRequest> {
    let call = HookCall::Exec { sandbox: sandbox(), command: vec!["true".into()] };
    Box::new(HookRequest { id: container(), moment: HookMoment::PreStop, call })
}

fn name() -> PodName {
    PodName { namespace: "default".into(), name: "web".into() }
}

/// Those that make something, or look whether it is there.
fn making() -> Vec<(Act, Row)> {
    use Lane::{Disk, Hooks, Kernel, Layers, Looks, Network, Probes, Start};
    let source = VolumeSource::HostPath { path: "/srv".into(), kind: HostPathType::Unset };
    let volume = VolumeRequest {
        pod: pod(),
        volume: Volume { name: VolumeName::new("v"), source },
        fs_group: None,
        backing: Ok(Backing::Disk),
        image: None,
        ids: None,
    };
    vec![
        (
            Act::EnsureCgroup(CgroupRequest { qos: QosClass::Burstable, values: CgroupValues::default() }),
            ("ensure-cgroup", Some(Kernel), 60, Some("cgroup u")),
        ),
        (Act::EnsureDirs(name()), ("ensure-dirs", None, 60, None)),
        (
            Act::EnsureNetns(NetnsRequest { sandbox: sandbox(), ids: None }),
            ("ensure-netns", Some(Kernel), 60, Some("network namespace s1")),
        ),
        (Act::EnsureNetwork(network()), ("ensure-network", Some(Network), 240, None)),
        (
            Act::EnsureSandbox(Box::new(SandboxRequest {
                id: sandbox(),
                attempt: 0,
                pod: pod(),
                hostname: "web".into(),
                sysctls: Vec::new(),
                ids: None,
            })),
            ("ensure-sandbox", Some(Start), 240, None),
        ),
        (Act::EnsureVolume(Box::new(volume)), ("ensure-volume", None, 300, None)),
        (
            Act::EnsureRootfs(RootfsRequest { id: container(), image: image(), ids: None }),
            ("ensure-rootfs", Some(Layers), 240, None),
        ),
        (Act::StartContainer(start()), ("start-container", None, 240, None)),
        (Act::WriteFiles(Vec::new()), ("write-files", None, 60, None)),
        (Act::Look(Box::default()), ("look", Some(Looks), 60, Some("look u"))),
        (Act::Probe(probe(tcp())), ("probe", Some(Probes), 18, None)),
        (Act::Probe(probe(command())), ("probe", Some(Probes), 138, None)),
        (Act::RunHook(hook()), ("run-hook", Some(Hooks), 604_800, None)),
        (Act::KeepEnd(record()), ("keep-end", Some(Disk), 60, Some("kept end u"))),
    ]
}

/// Those that end or remove something, or ask for it.
fn ending() -> Vec<(Act, Row)> {
    use Lane::{Disk, KernelEnds, Network, Signals, Stop};
    vec![
        (
            Act::LookAtTask(Box::new(TaskRequest { pod: pod(), sandbox: sandbox(), id: container() })),
            ("look-at-task", Some(Signals), 10, None),
        ),
        (
            Act::ResizeContainer(Box::new(ResizeRequest {
                name: ContainerName::new("web"),
                id: container(),
                sandbox: sandbox(),
                resources: LinuxResources::default(),
                lowered: MemoryCheck { qos: QosClass::Burstable, bounds: Vec::new() },
            })),
            ("resize-container", Some(Lane::Resizes), 240, Some("resources of container c1")),
        ),
        (
            Act::CheckMemory(MemoryCheck { qos: QosClass::Burstable, bounds: Vec::new() }),
            ("check-memory", Some(Lane::Kernel), 60, None),
        ),
        (
            Act::Signal(SignalRequest { sandbox: sandbox(), id: container(), signal: StopSignal::Kill }),
            ("signal", Some(Signals), 10, None),
        ),
        (
            Act::ReadTerminationMessage(Box::new(TerminationMessageRequest {
                id: container(),
                file: None,
                log: None,
            })),
            ("read-termination-message", None, 60, None),
        ),
        (
            Act::RemoveContainer(RemoveContainerRequest { id: container() }),
            ("remove-container", Some(Stop), 240, None),
        ),
        (Act::RemoveSandbox(sandbox()), ("remove-sandbox", Some(Stop), 240, None)),
        (Act::KillShim(sandbox()), ("kill-shim", Some(Stop), 60, None)),
        (Act::RemoveNetwork(sandbox()), ("remove-network", Some(Network), 240, None)),
        (Act::RemoveNetns(sandbox()), ("remove-netns", Some(KernelEnds), 60, Some("network namespace s1"))),
        (Act::RemoveVolumes { with_images: true }, ("remove-volumes", None, 300, None)),
        (Act::RemoveCgroup(QosClass::Burstable), ("remove-cgroup", Some(KernelEnds), 60, Some("cgroup u"))),
        (Act::RemoveDirs(name()), ("remove-dirs", None, 300, None)),
        (Act::DropEnd, ("drop-end", Some(Disk), 60, Some("kept end u"))),
        (Act::Sweep, ("sweep", Some(Stop), 300, Some("cgroup u"))),
    ]
}

#[test]
fn every_effect_of_a_pod_has_its_lane_its_deadline_and_its_target() {
    let table = [making(), ending()].concat();
    let of_node = [
        "inspect-image",
        "pull-image",
        "measure-images",
        "list-images",
        "remove-image",
        "set-qos",
        "read-node-object",
    ];
    let named: BTreeSet<&str> = table.iter().map(|(_, row)| row.0).chain(of_node).collect();
    assert_eq!(named, KINDS.iter().copied().collect(), "a kind is not in the table");
    for (act, expected) in table {
        let effect = Effect::Pod { op: OpId(1), pod: PodUid::new("u"), act };
        is(&effect, expected);
    }
}

#[test]
fn every_effect_of_the_node_has_its_lane_its_deadline_and_its_target() {
    let wanted = || WantedImage::open(ImageRef::new("i"));
    let stored = StoredImage {
        id: "sha256:ab".into(),
        names: Vec::new(),
        chain_id: "sha256:cd".into(),
        size_bytes: 1,
        touched: Timestamp::UNIX_EPOCH,
        stays: None,
    };
    let removal = Box::new(Removal { image: stored, reason: Reason::Space });
    for (act, expected) in [
        (NodeAct::InspectImage(wanted()), ("inspect-image", None, 6 * 3600, None)),
        (NodeAct::PullImage(wanted()), ("pull-image", Some(Lane::Pulls), 6 * 3600, None)),
        (NodeAct::MeasureImages, ("measure-images", None, 60, None)),
        (NodeAct::ListImages, ("list-images", Some(Lane::Images), 240, None)),
        (NodeAct::RemoveImage(removal), ("remove-image", Some(Lane::Stop), 240, None)),
        (
            NodeAct::SetQos(Box::default()),
            ("set-qos", Some(Lane::Kernel), 60, Some("cgroups of the QoS classes ")),
        ),
        (NodeAct::ReadNodeObject, ("read-node-object", None, 60, None)),
    ] {
        is(&Effect::Node { op: OpId(1), act }, expected);
    }
}

#[test]
fn what_the_loop_performs_itself_is_of_no_kind() {
    let event = PodEvent {
        container: None,
        severity: Severity::Normal,
        reason: "Pulled".into(),
        message: String::new(),
    };
    let name = PodName { namespace: "default".into(), name: "web".into() };
    let note = Note { name, version: None, field_path: String::new(), event };
    for act in [Act::Persist(record()), Act::Forget, Act::Withdraw, Act::Note(note), Act::GiveUpHook(OpId(1))]
    {
        let effect = Effect::Pod { op: OpId(1), pod: PodUid::new("u"), act };
        assert!(EffectKind::of(&effect).is_none(), "{effect:?}");
    }
    let (severity, reason, message) = (Severity::Warning, "MissingClusterDNS".to_owned(), String::new());
    let act = NodeAct::Note(node::Note { severity, reason, message });
    assert!(EffectKind::of(&Effect::Node { op: OpId(1), act }).is_none());
}

fn is(effect: &Effect, expected: Row) {
    let kind = EffectKind::of(effect).unwrap();
    let target = kind.target.map(|target| format!("{} {}", target.what, target.of));
    assert_eq!((kind.name, kind.lane, kind.deadline.as_secs(), target.as_deref()), expected);
}

#[test]
fn what_is_done_in_a_sandbox_may_be_answered_with_its_loss() {
    let table = [making(), ending()].concat();
    let in_sandbox = table.iter().filter(|(act, _)| sandbox_of(act).is_some());
    let names: Vec<&str> = in_sandbox.map(|(_, (name, ..))| *name).collect();
    assert_eq!(names, ["ensure-sandbox", "start-container", "look-at-task"]);
}

/// Those that it copies for the image's `VOLUME`s, and those that it labels.
#[test]
fn a_start_that_walks_trees_has_the_longer() {
    let volume = || ImageVolume { target: "/root/0".into(), image_path: "/data".into() };
    let relabel = || Relabel { label: "l".into(), places: Vec::new() };
    for (volumes, labels, expected) in [
        (Vec::new(), None, 240),
        (vec![volume()], None, 540),
        (Vec::new(), Some(relabel()), 540),
        (vec![volume()], Some(relabel()), 840),
    ] {
        let mut request = start();
        (request.plan.image_volumes, request.plan.relabel) = (volumes, labels);
        let effect = Effect::Pod { op: OpId(1), pod: PodUid::new("u"), act: Act::StartContainer(request) };
        is(&effect, ("start-container", None, expected, None));
    }
}
