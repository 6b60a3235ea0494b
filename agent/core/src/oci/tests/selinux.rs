//! Labels of containers and of what they mount.

use super::Bench;
use crate::{
    id::VolumeName,
    oci::{HandlerTerms, PrivilegedDevices, with_terms},
    selinux::{Mounted, RelabelPlace, SeLinux},
    spec::{
        ContentKind, ContentVolume, HostPathType, IpcMode, Medium, Mount, MountPropagation, NetworkMode,
        RecursiveReadOnly, SeLinuxOptions, SubPath, Volume, VolumeSource,
    },
};

const POD: &str = "/var/lib/kubelet/pods/0b1c-2d";

/// On a node whose SELinux labels containers.
fn bench(change: impl FnOnce(&mut Bench)) -> Bench {
    let contexts = "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n\
                    kvm_process = \"system_u:system_r:container_kvm_t:s0\"\n";
    Bench::with(|bench| {
        bench.node.se_linux = Some(SeLinux::of(contexts, 1024));
        bench.level = Some("s0:c5,c9");
        change(bench);
    })
}

/// Has the container mount a volume.
fn mount(bench: &mut Bench, source: VolumeSource, path: &str, sub_path: SubPath) {
    let name = VolumeName::new(format!("v{}", bench.pod.volumes.len()));
    let place = match &source {
        VolumeSource::HostPath { path, .. } => path.clone(),
        VolumeSource::EmptyDir { .. }
        | VolumeSource::Content(_)
        | VolumeSource::Claim(_)
        | VolumeSource::Image { .. } => {
            format!("{POD}/volumes/{name}")
        }
    };
    bench.volumes.insert(name.clone(), place);
    bench.pod.volumes.push(Volume { name: name.clone(), source });
    bench.container.mounts.push(Mount {
        volume: name,
        path: path.to_owned(),
        sub_path,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: MountPropagation::Private,
    });
}

fn host_path(path: &str) -> VolumeSource {
    VolumeSource::HostPath { path: path.to_owned(), kind: HostPathType::Unset }
}

fn empty_dir() -> VolumeSource {
    VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None }
}

/// What is labelled, without the pod's directory, and what of it.
fn labelled(bench: &Bench) -> Vec<String> {
    let relabel = bench.plan().unwrap().relabel.unwrap();
    assert_eq!(relabel.label, "system_u:object_r:container_file_t:s0:c5,c9");
    let text = |RelabelPlace { root, part, mounted }: &RelabelPlace| {
        let root = root.strip_prefix(&format!("{POD}/")).unwrap_or_else(|| panic!("{root} is the node's"));
        let mounted = match mounted {
            Mounted::Nothing => "",
            Mounted::Memory => " that is mounted",
            Mounted::Bound => " that is bound",
        };
        part.as_ref().map_or_else(|| root.to_owned(), |part| format!("{root} {part}")) + mounted
    };
    relabel.places.iter().map(text).collect()
}

#[test]
fn the_spec_has_the_labels_of_its_process_and_of_its_mounts() {
    let labels = |bench: &Bench| {
        let (spec, process) = (bench.spec(), bench.process());
        (process.selinux_label().clone(), spec.linux().clone().unwrap().mount_label().clone())
    };
    let (process, file) =
        ("system_u:system_r:container_t:s0:c5,c9", "system_u:object_r:container_file_t:s0:c5,c9");
    let both = (Some(process.to_owned()), Some(file.to_owned()));
    assert_eq!(labels(&bench(|_| {})), both);
    // Namespaces of the node take nothing away.
    let shared = bench(|bench| (bench.pod.network, bench.pod.ipc) = (NetworkMode::Node, IpcMode::Node));
    assert_eq!(labels(&shared), both);
    let privileged = bench(|bench| bench.container.security.privileged = true);
    assert_eq!(labels(&privileged), (None, Some(file.to_owned())));
    let own = bench(|bench| {
        bench.container.security.se_linux =
            SeLinuxOptions { kind: "own_t".into(), ..SeLinuxOptions::default() };
    });
    assert_eq!(labels(&own).0.as_deref(), Some("system_u:system_r:own_t:s0:c5,c9"));
}

#[test]
fn a_level_of_another_form_starts_nothing() {
    for node in [bench(|_| {}), Bench::new()] {
        let bench = Bench { container: node.container.clone(), ..node };
        let options = SeLinuxOptions { level: "s0:c1-c2".into(), ..SeLinuxOptions::default() };
        let mut container = bench.container.clone();
        container.security.se_linux = options;
        let error = Bench { container, ..bench }.error();
        assert_eq!(error.to_string(), "the format of 'level' \"s0:c1-c2\" is not correct");
        assert_eq!(error.reason(), "CreateContainerError");
    }
}

#[test]
fn a_handler_with_virtual_machines_has_the_type_of_those() {
    for (is_vm, is_privileged, expected) in [
        (false, false, Some("system_u:system_r:container_t:s0:c5,c9")),
        (true, false, Some("system_u:system_r:container_kvm_t:s0:c5,c9")),
        (true, true, None),
        (false, true, None),
    ] {
        let bench = bench(|bench| bench.container.security.privileged = is_privileged);
        let plan = bench.plan().unwrap();
        let terms = HandlerTerms { pod_annotations: &[], devices: PrivilegedDevices::All, is_vm };
        let spec = with_terms(plan.spec.clone(), &plan, &bench.pod.annotations, is_privileged, terms);
        assert_eq!(
            spec.process().clone().unwrap().selinux_label().as_deref(),
            expected,
            "{is_vm} {is_privileged}"
        );
    }
}

#[test]
fn files_that_are_the_pods_own_are_labelled() {
    let id = Bench::new().id().to_string();
    let log = format!("containers/web/{}", &id[..8]);
    let plain = labelled(&bench(|_| {}));
    assert_eq!(plain, ["etc-hosts", &log, "hostname", "resolv.conf"]);
    let all = labelled(&bench(|bench| {
        let content = ContentVolume { kind: ContentKind::Secret, default_mode: 0o644, sources: Vec::new() };
        mount(bench, empty_dir(), "/data", SubPath::Root);
        mount(bench, VolumeSource::Content(content), "/secret", SubPath::Fixed("key".into()));
        let memory = VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes: None };
        mount(bench, memory, "/memory", SubPath::Root);
        mount(bench, host_path("/srv"), "/srv", SubPath::Root);
        mount(bench, host_path("/srv"), "/part", SubPath::Fixed("part".into()));
        bench.image.config.volumes = vec!["/var/lib/data".into()];
    }));
    let mut volumes: Vec<_> = all.iter().filter(|place| !plain.contains(place)).cloned().collect();
    volumes.sort();
    assert_eq!(volumes.len(), 4, "{volumes:?}");
    let expected = ["volumes/v0", "volumes/v1 key that is mounted", "volumes/v2 that is mounted"];
    assert_eq!(volumes[1..], expected);
    assert!(volumes[0].starts_with("containers/web/"), "{volumes:?}");
}

/// Wherever it is mounted, and whatever of it.
#[test]
fn cve_2021_43816_a_path_of_the_node_is_not_relabelled_wherever_it_is_mounted() {
    let plain = labelled(&bench(|_| {}));
    for (path, covered) in [
        ("/etc/hosts", "etc-hosts"),
        ("/etc//hosts", "etc-hosts"),
        ("/etc/hostname", "hostname"),
        ("/etc/resolv.conf", "resolv.conf"),
        ("/dev/shm", ""),
        ("/data", ""),
    ] {
        for sub_path in [SubPath::Root, SubPath::Fixed("shadow".into())] {
            let found = labelled(&bench(|bench| mount(bench, host_path("/etc"), path, sub_path)));
            let is_left = |place: &&String| covered.is_empty() || !place.ends_with(covered);
            let expected: Vec<_> = plain.iter().filter(is_left).cloned().collect();
            assert_eq!(found, expected, "{path}");
        }
    }
    let shared =
        labelled(&bench(|bench| (bench.pod.network, bench.pod.ipc) = (NetworkMode::Node, IpcMode::Node)));
    assert_eq!(shared, plain);
    assert_eq!(Bench::new().plan().unwrap().relabel, None);
}
