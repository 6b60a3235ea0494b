//! What a container sees of the node's file system.

use std::path::Path;

use super::Bench;
use crate::{
    id::VolumeName,
    oci::{ConfigError, ExistingFile, ImageVolume, ObjectValues, PartOf, SubPathBind},
    spec::{
        EnvSource, EnvVar, IpcMode, Mount, MountPropagation, NetworkMode, Pod, RecursiveReadOnly, SubPath,
    },
};

const POD: &str = "/var/lib/kubelet/pods/0b1c-2d";

fn at(path: &str) -> Mount {
    Mount {
        volume: VolumeName::new("data"),
        path: path.into(),
        sub_path: SubPath::Root,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: MountPropagation::Private,
    }
}

fn bench(mounts: Vec<Mount>) -> Bench {
    Bench::with(|bench| {
        bench.volumes.insert(VolumeName::new("data"), "/vol/data".into());
        bench.container.mounts = mounts;
    })
}

/// `destination type source options` of every mount, in order.
fn lines(bench: &Bench) -> Vec<String> {
    let spec = bench.spec();
    let all = spec.mounts().iter().flatten();
    all.map(|mount| {
        let path = |path: &Path| path.display().to_string();
        format!(
            "{} {} {} {}",
            path(mount.destination()),
            mount.typ().as_deref().unwrap_or("-"),
            mount.source().as_deref().map_or_else(String::new, path),
            mount.options().iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",")
        )
    })
    .collect()
}

fn line(bench: &Bench, destination: &str) -> String {
    let prefix = format!("{destination} ");
    let found: Vec<String> = lines(bench).into_iter().filter(|line| line.starts_with(&prefix)).collect();
    assert_eq!(found.len(), 1, "{destination}: {found:?}");
    found[0].clone()
}

#[test]
fn what_every_container_has() {
    let id = Bench::new().id();
    assert_eq!(
        lines(&Bench::new()),
        [
            "/proc proc proc nosuid,noexec,nodev".to_owned(),
            "/dev tmpfs tmpfs nosuid,strictatime,mode=755,size=65536k".to_owned(),
            "/dev/pts devpts devpts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5".to_owned(),
            "/dev/shm tmpfs shm nosuid,noexec,nodev,mode=1777,size=65536k".to_owned(),
            "/dev/mqueue mqueue mqueue nosuid,noexec,nodev".to_owned(),
            "/sys sysfs sysfs nosuid,noexec,nodev,ro".to_owned(),
            "/sys/fs/cgroup cgroup cgroup nosuid,noexec,nodev,relatime,ro".to_owned(),
            format!("/etc/hosts bind {POD}/etc-hosts rbind,rprivate,rw"),
            format!("/dev/termination-log bind {POD}/containers/web/{} rbind,rprivate,rw", &id.as_str()[..8]),
            format!("/etc/hostname bind {POD}/hostname rbind,rprivate,rw"),
            format!("/etc/resolv.conf bind {POD}/resolv.conf rbind,rprivate,rw"),
        ]
    );
}

#[test]
fn files_behind_the_mounts() {
    let bench = Bench::new();
    let files = bench.plan().unwrap().files;
    let short: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.mode, file.existing)).collect();
    let log = format!("{POD}/containers/web/{}", &bench.id().as_str()[..8]);
    assert_eq!(
        short,
        [
            (&*format!("{POD}/etc-hosts"), 0o644, ExistingFile::Replace),
            (&*log, 0o666, ExistingFile::Keep),
            (&*format!("{POD}/hostname"), 0o644, ExistingFile::Keep),
            (&*format!("{POD}/resolv.conf"), 0o644, ExistingFile::Keep),
        ]
    );
    assert!(files[0].content.starts_with("# Kubernetes-managed hosts file.\n"));
    assert!(files[0].content.ends_with("10.1.2.3\tweb-node-1\n"));
    assert_eq!(files[1].content, "");
    assert_eq!(files[2].content, "web-node-1\n");
    assert!(files[3].content.contains("nameserver 10.96.0.10\n"));
}

#[test]
fn a_read_only_root_has_read_only_files_of_the_runtime() {
    let bench = Bench::with(|bench| bench.container.security.read_only_root = true);
    assert!(line(&bench, "/etc/hostname").ends_with(",ro"));
    assert!(line(&bench, "/etc/resolv.conf").ends_with(",ro"));
    assert!(line(&bench, "/etc/hosts").ends_with(",rw"));
    let spec = bench.spec();
    let root = spec.root().as_ref().unwrap();
    assert_eq!((root.path().as_path(), root.readonly()), (Path::new("rootfs"), Some(true)));
}

#[test]
fn options_of_a_volume_mount() {
    use MountPropagation::{Bidirectional, HostToContainer, Private};
    for (propagation, read_only, options, root) in [
        (Private, false, "rbind,rprivate,rw", None),
        (Private, true, "rbind,rprivate,ro", None),
        (HostToContainer, false, "rbind,rslave,rw", Some("rslave")),
        (Bidirectional, true, "rbind,rshared,ro", Some("rshared")),
    ] {
        let bench = bench(vec![Mount { propagation, read_only, ..at("/data") }]);
        assert_eq!(line(&bench, "/data"), format!("/data bind /vol/data {options}"));
        let linux = bench.spec().linux().clone().unwrap();
        assert_eq!(linux.rootfs_propagation().as_deref(), root);
    }
    let both = bench(vec![
        Mount { propagation: Bidirectional, ..at("/a") },
        Mount { propagation: HostToContainer, ..at("/b") },
    ]);
    let linux = both.spec().linux().clone().unwrap();
    assert_eq!(linux.rootfs_propagation().as_deref(), Some("rshared"));
}

#[test]
fn a_mount_is_read_only_with_all_below_where_that_can_be() {
    use RecursiveReadOnly::{Disabled, Enabled, IfPossible};
    let refused = "failed to resolve recursive read-only mode: volume \"data\" requested recursive read-only mode, but it is not \
        supported by the runtime";
    for (mode, is_supported, expected) in [
        (Disabled, true, Ok("ro")),
        (IfPossible, true, Ok("rro")),
        (IfPossible, false, Ok("ro")),
        (Enabled, true, Ok("rro")),
        (Enabled, false, Err(refused)),
    ] {
        let mount = Mount { read_only: true, recursive_read_only: mode, ..at("/data") };
        let mut bench = bench(vec![mount, at("/other")]);
        bench.recursive_read_only = is_supported;
        match expected {
            Ok(access) => {
                assert_eq!(line(&bench, "/data"), format!("/data bind /vol/data rbind,rprivate,{access}"));
                assert_eq!(line(&bench, "/other"), "/other bind /vol/data rbind,rprivate,rw");
            }
            Err(message) => {
                let error = bench.error();
                assert_eq!(
                    (error.to_string().as_str(), error.reason()),
                    (message, "CreateContainerConfigError")
                );
            }
        }
    }
}

#[test]
fn parents_come_before_children() {
    let bench = bench(vec![at("/a/b/c"), at("/a"), at("/z"), at("/a/b")]);
    let own: Vec<String> =
        lines(&bench).iter().filter_map(|line| Some(line.split_once(" bind /vol")?.0.to_owned())).collect();
    assert_eq!(own, ["/a", "/z", "/a/b", "/a/b/c"]);
}

#[test]
fn mounts_of_the_pod_take_the_place_of_others() {
    for path in [
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/dev/shm",
        "/proc",
        "/sys/fs/cgroup",
        "/dev/shm/",
    ] {
        let bench = bench(vec![at(path)]);
        let path = path.trim_end_matches('/');
        assert_eq!(line(&bench, path), format!("{path} bind /vol/data rbind,rprivate,rw"));
        let shared = Bench { pod: Pod { ipc: IpcMode::Node, ..bench.pod.clone() }, ..bench };
        assert_eq!(line(&shared, path), format!("{path} bind /vol/data rbind,rprivate,rw"));
    }
    let dev = lines(&bench(vec![at("/dev")]));
    let below: Vec<_> = dev.iter().filter(|line| line.starts_with("/dev")).collect();
    assert_eq!(below.len(), 2, "{below:?}");
    assert!(below[0].starts_with("/dev bind") && below[1].starts_with("/dev/termination-log bind"));
}

#[test]
fn a_mount_path_is_absolute_and_goes_nowhere_else() {
    for (path, expected) in
        [("data", "/data"), ("/a//b/./c/", "/a/b/c"), ("/../../x", "/x"), ("/a/../../etc/x", "/etc/x")]
    {
        assert!(line(&bench(vec![at(path)]), expected).contains("bind /vol/data"), "{path}");
    }
    assert_eq!(bench(vec![at("/a\0")]).error().reason(), "CreateContainerError");
}

#[test]
fn no_hosts_file_without_an_address_but_in_the_nodes_network() {
    let unwired = Bench::with(|bench| bench.network = None);
    assert!(lines(&unwired).iter().all(|line| !line.starts_with("/etc/hosts ")));
    assert!(unwired.plan().unwrap().files.iter().all(|file| !file.path.ends_with("etc-hosts")));
    let of_node = Bench::with(|bench| {
        bench.network = None;
        bench.pod.network = NetworkMode::Node;
    });
    assert!(line(&of_node, "/etc/hosts").contains("etc-hosts"));
    assert!(of_node.plan().unwrap().files.iter().any(|file| file.content == "Node-1.example\n"));
}

#[test]
fn shared_memory_of_the_node_with_its_ipc() {
    let bench = Bench::with(|bench| bench.pod.ipc = IpcMode::Node);
    assert_eq!(line(&bench, "/dev/shm"), "/dev/shm bind /dev/shm rbind,rprivate,rw");
}

#[test]
fn no_termination_message_file_without_a_path() {
    let bench = Bench::with(|bench| bench.container.termination_message.path.clear());
    assert!(lines(&bench).iter().all(|line| !line.contains("/containers/")));
    let relative = Bench::with(|bench| bench.container.termination_message.path = "last/words".into());
    assert!(line(&relative, "/last/words").contains("/containers/web/"));
}

#[test]
fn a_part_of_a_volume_is_bound_first() {
    let target = format!("{POD}/volume-subpaths/data/web/1");
    for (sub_path, expected) in [
        (SubPath::Fixed("a/b".into()), Ok("a/b")),
        (SubPath::Expression("$(NAME)/x".into()), Ok("web/x")),
        (SubPath::Expression("$$(NAME)".into()), Ok("$(NAME)")),
        (SubPath::Fixed("a..b".into()), Ok("a..b")),
        (
            SubPath::Expression("$(B)$(A)$(EMPTY)$(A)".into()),
            Err(ConfigError::SubPathVariables { names: vec!["A".into(), "B".into(), "EMPTY".into()] }),
        ),
        (SubPath::Expression("$(ABS)".into()), Err(ConfigError::SubPathAbsolute { path: "$(ABS)".into() })),
        (
            SubPath::Expression("x/$(UP)".into()),
            Err(ConfigError::SubPathBacksteps { path: "x/$(UP)".into() }),
        ),
        (SubPath::Fixed("../x".into()), Err(ConfigError::SubPathBacksteps { path: "../x".into() })),
        (SubPath::Fixed("/x".into()), Err(ConfigError::SubPathAbsolute { path: "/x".into() })),
    ] {
        let mut bench = bench(vec![at("/first"), Mount { sub_path: sub_path.clone(), ..at("/data") }]);
        bench.values = Some(ObjectValues::default());
        for (name, value) in [("NAME", "web"), ("ABS", "/etc"), ("UP", ".."), ("EMPTY", "")] {
            bench.container.env.push(EnvVar { name: name.into(), source: EnvSource::Value(value.into()) });
        }
        match expected {
            Ok(path) => {
                assert!(line(&bench, "/data").contains(&target), "{sub_path:?}");
                let bind = SubPathBind {
                    mount: VolumeName::new("data"),
                    volume: "/vol/data".into(),
                    of: PartOf::Volume,
                    sub_path: path.into(),
                    target: target.clone(),
                };
                assert_eq!(bench.plan().unwrap().sub_paths, [bind], "{sub_path:?}");
            }
            Err(error) => assert_eq!(bench.error(), error, "{sub_path:?}"),
        }
    }
    assert_eq!(
        ConfigError::SubPathVariables { names: vec!["A".into(), "B".into()] }.to_string(),
        "missing value for A, B"
    );
    let by_service = SubPath::Expression("$(KUBERNETES_SERVICE_HOST)".into());
    let mut to_come = bench(vec![Mount { sub_path: by_service, ..at("/data") }]);
    assert!(to_come.plan().is_ok(), "before services are known");
    let host = ("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
    to_come.values = Some(ObjectValues { services: [host].into(), ..ObjectValues::default() });
    let known = to_come.plan();
    assert_eq!(known.unwrap().sub_paths[0].sub_path, "10.0.0.1");
    let whole = bench(vec![Mount { sub_path: SubPath::Fixed(String::new()), ..at("/data") }]);
    assert!(line(&whole, "/data").contains("bind /vol/data "));
}

#[test]
fn paths_of_the_node_and_mounts_that_travel_are_looked_at_first() {
    use crate::spec::{HostPathType, Medium, Volume, VolumeSource};
    let host = |path: &str| VolumeSource::HostPath { path: path.into(), kind: HostPathType::Unset };
    let empty = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None };
    let cases = [
        (host("/srv"), SubPath::Root, MountPropagation::Private, Some("/srv")),
        (host("/srv"), SubPath::Root, MountPropagation::Bidirectional, Some("/srv")),
        (host("/srv"), SubPath::Fixed("a".into()), MountPropagation::Private, None),
        (host("/srv"), SubPath::Fixed("a".into()), MountPropagation::HostToContainer, Some("subpath")),
        (empty.clone(), SubPath::Root, MountPropagation::Private, None),
        (empty, SubPath::Root, MountPropagation::HostToContainer, Some("/srv")),
    ];
    for (source, sub_path, propagation, expected) in cases {
        let mount = Mount { sub_path: sub_path.clone(), propagation, ..at("/data") };
        let mut bench = bench(vec![mount]);
        bench.volumes = [(VolumeName::new("data"), "/srv".into())].into();
        bench.pod.volumes = vec![Volume { name: VolumeName::new("data"), source: source.clone() }];
        let found = bench.plan().unwrap().mount_sources;
        let subpath = format!("{POD}/volume-subpaths/data/web/0");
        let expected = expected.map(|path| if path == "subpath" { subpath.as_str() } else { path });
        let paths: Vec<_> = found.iter().map(|source| (source.path.as_str(), source.propagation)).collect();
        let wanted: Vec<_> = expected.into_iter().map(|path| (path, propagation)).collect();
        assert_eq!(paths, wanted, "{source:?} {sub_path:?} {propagation:?}");
    }
}

/// Owners of what is in it are shifted where it is mounted, and nobody writes to it whatever a pod asks for.
#[test]
fn an_image_is_mounted_to_be_read_and_as_it_is() {
    use crate::{
        id::ImageRef,
        spec::{ImagePullPolicy, Volume, VolumeSource},
        users::HostIds,
    };
    let source =
        VolumeSource::Image { image: ImageRef::new("data:1"), pull_policy: ImagePullPolicy::IfNotPresent };
    let bench = |mount: Mount| {
        let mut bench = bench(vec![mount]);
        bench.pod.volumes = vec![Volume { name: VolumeName::new("data"), source: source.clone() }];
        bench
    };
    let recursive = RecursiveReadOnly::IfPossible;
    for (mount, options) in [
        (at("/data"), "rbind,rprivate,ro"),
        (Mount { read_only: true, ..at("/data") }, "rbind,rprivate,ro"),
        (Mount { read_only: true, recursive_read_only: recursive, ..at("/data") }, "rbind,rprivate,rro"),
        (Mount { propagation: MountPropagation::HostToContainer, ..at("/data") }, "rbind,rslave,ro"),
    ] {
        let mut bench = bench(mount.clone());
        bench.recursive_read_only = true;
        assert_eq!(line(&bench, "/data"), format!("/data bind /vol/data {options}"), "{mount:?}");
        bench.ids = Some(HostIds { first: 131_072, count: 65_536 });
        assert_eq!(line(&bench, "/data"), format!("/data bind /vol/data {options}"), "{mount:?}");
        assert!(line(&bench, "/etc/hosts").ends_with(",idmap"));
    }
    for (sub_path, path, written) in [
        (SubPath::Fixed("etc".into()), "etc", "etc"),
        (SubPath::Expression("$(SECRET)/x".into()), "s3cret/x", "$(SECRET)/x"),
    ] {
        let mut bench = bench(Mount { sub_path, ..at("/data") });
        let secret = EnvVar { name: "SECRET".into(), source: EnvSource::Value("s3cret".into()) };
        bench.container.env.push(secret);
        let parts = bench.plan().unwrap().sub_paths;
        let found: Vec<_> = parts.iter().map(|part| (part.of.clone(), part.sub_path.as_str())).collect();
        assert_eq!(found, [(PartOf::Image(written.into()), path)]);
    }
}

#[test]
fn a_volume_that_is_not_there_is_an_error() {
    let bench = Bench::with(|bench| bench.container.mounts = vec![at("/data")]);
    let error = bench.error();
    assert_eq!(error.to_string(), "cannot find volume \"data\" to mount into container \"web\"");
    assert_eq!(error.reason(), "CreateContainerConfigError");
}

#[test]
fn volumes_of_the_image_are_directories_of_the_run() {
    let bench = Bench::with(|bench| {
        bench.image.config.volumes = vec!["/var/lib/db".into(), "/data/".into(), "cache".into()];
        bench.volumes.insert(VolumeName::new("data"), "/vol/data".into());
        bench.container.mounts = vec![at("/data")];
    });
    let dir = format!("{POD}/containers/web/{}-volumes", &bench.id().as_str()[..8]);
    let volume =
        |index: usize, path: &str| ImageVolume { target: format!("{dir}/{index}"), image_path: path.into() };
    assert_eq!(bench.plan().unwrap().image_volumes, [volume(0, "/var/lib/db"), volume(2, "/cache")]);
    assert_eq!(line(&bench, "/var/lib/db"), format!("/var/lib/db bind {dir}/0 rbind,rprivate,rw"));
    assert!(line(&bench, "/data").contains("/vol/data"));
}

#[test]
fn cve_2022_23648_a_volume_of_the_image_leads_nowhere_else() {
    for path in ["/../../etc", "/data/../../../etc/shadow", "..", "/", "", ".", "/x\0y", "a/.."] {
        let bench = Bench::with(|bench| bench.image.config.volumes = vec![path.into()]);
        assert_eq!(bench.error(), ConfigError::ImageVolume { path: path.into() }, "{path:?}");
    }
    let many = Bench::with(|bench| {
        bench.image.config.volumes = (0..257).map(|index| format!("/v{index}")).collect();
    });
    assert_eq!(many.error(), ConfigError::ImageVolumes { count: 257, max: 256 });
}

#[test]
fn what_a_claim_has_brought_is_labelled_where_it_is_bound_and_written_unless_the_pod_says_no() {
    use crate::{
        selinux::SeLinux,
        spec::{ClaimVolume, Volume, VolumeSource},
    };
    let contexts = "process = \"u:r:container_t:s0\"\nfile = \"u:object_r:container_file_t:s0\"\n";
    let bound = format!("{POD}/volumes/kubernetes.io~local-volume/pv");
    let beside = format!("{POD}-other/volumes/pv");
    for (place, read_only, options, labelled, is_looked_at) in [
        (bound.as_str(), false, "rbind,rprivate,rw", true, false),
        (bound.as_str(), true, "rbind,rprivate,ro", false, false),
        ("/srv/data", false, "rbind,rprivate,rw", false, true),
        ("/srv/data", true, "rbind,rprivate,ro", false, true),
        (beside.as_str(), false, "rbind,rprivate,rw", false, true),
    ] {
        let mut bench = bench(vec![at("/data")]);
        bench.node.se_linux = Some(SeLinux::of(contexts, 1024));
        bench.level = Some("s0:c5,c9");
        let claim = ClaimVolume { name: "mine".into(), read_only, is_of_pod: false };
        bench.volumes = [(VolumeName::new("data"), place.into())].into();
        bench.pod.volumes =
            vec![Volume { name: VolumeName::new("data"), source: VolumeSource::Claim(claim) }];
        assert!(line(&bench, "/data").contains(options), "{place} {read_only}");
        let plan = bench.plan().unwrap();
        let places = plan.relabel.unwrap().places;
        assert_eq!(places.iter().any(|one| one.root == place), labelled, "{place} {read_only}");
        let sources: Vec<&str> = plan.mount_sources.iter().map(|source| source.path.as_str()).collect();
        assert_eq!(sources.contains(&place), is_looked_at, "{place}");
    }
}
