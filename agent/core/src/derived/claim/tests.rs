use super::*;
use crate::{
    fixtures,
    spec::{
        Mount, MountPropagation, Operator, RecursiveReadOnly, Requirement, SubPath, VolumeDevice,
        VolumeSource,
    },
};

fn data() -> VolumeName {
    VolumeName::new("data")
}

/// A pod that mounts the volume, or has it as a device.
fn pod(mode: VolumeMode) -> Pod {
    let mut main = fixtures::container("main");
    match mode {
        VolumeMode::Filesystem => main.mounts.push(Mount {
            volume: data(),
            path: "/data".into(),
            sub_path: SubPath::Root,
            read_only: false,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: MountPropagation::Private,
        }),
        VolumeMode::Block => main.devices.push(VolumeDevice { volume: data(), path: "/dev/data".into() }),
    }
    fixtures::pod(vec![main])
}

fn wanted(is_of_pod: bool) -> ClaimVolume {
    ClaimVolume { name: "mine".into(), read_only: false, is_of_pod }
}

fn claim() -> Claim {
    Claim { uid: "c1".into(), controller: None, is_going: false, is_bound: true, volume: "pv".into() }
}

fn volume(source: PersistentSource, mode: VolumeMode) -> PersistentVolume {
    PersistentVolume {
        name: "pv".into(),
        claim: Some("c1".into()),
        source,
        mode,
        is_of_one_pod: false,
        mount_options: Vec::new(),
        affinity: None,
    }
}

fn local(path: &str) -> PersistentSource {
    PersistentSource::Local(path.into())
}

fn unable(why: &str) -> String {
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
         volumes=[data]: {why}"
    )
}

#[test]
fn a_claim_that_is_not_to_be_used_yet_says_why() {
    let (pod, volume) = (pod(VolumeMode::Filesystem), data());
    let processing = |why: &str| Err(unable(&format!("error processing PVC shop/mine: {why}")));
    let not_its = "PVC shop/mine was not created for pod shop/web-node-1 (pod is not owner)";
    let owned = |uid: &str| Claim { controller: Some(uid.into()), ..claim() };
    for (claim, is_of_pod, expected) in [
        (claim(), false, Ok("pv")),
        (Claim { is_going: true, ..claim() }, false, processing("PVC is being deleted")),
        (Claim { is_bound: false, volume: String::new(), ..claim() }, false, processing("PVC is not bound")),
        (Claim { volume: String::new(), ..claim() }, false, processing("PVC has empty pvc.Spec.VolumeName")),
        (claim(), true, Err(unable(not_its))),
        (owned("other"), true, Err(unable(not_its))),
        (owned(pod.uid.as_str()), true, Ok("pv")),
        (owned("other"), false, Ok("pv")),
    ] {
        let wanted = wanted(is_of_pod);
        let asked = Asked { pod: &pod, volume: &volume, claim: &wanted };
        assert_eq!(asked.bound(&claim).map_err(|error| error.to_string()), expected, "{claim:?}");
    }
}

#[test]
fn a_volume_of_a_driver_or_of_another_claim_or_use_is_refused() {
    use VolumeMode::{Block, Filesystem};
    let name = data();
    let refused = |used, change: &dyn Fn(&mut PersistentVolume)| {
        let (pod, wanted) = (pod(used), wanted(false));
        let mut found = volume(local("/srv"), used);
        change(&mut found);
        let asked = Asked { pod: &pod, volume: &name, claim: &wanted };
        asked.claimed(&claim(), found, None).unwrap_err().to_string()
    };
    let host_path = || PersistentSource::HostPath { path: "/srv/../etc".into(), kind: HostPathType::Unset };
    let processing = |why: &str| unable(&format!("error processing PVC shop/mine: {why}"));
    for (told, expected) in [
        (
            refused(Filesystem, &|found| found.claim = None),
            processing(
                "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
            ),
        ),
        (
            refused(Filesystem, &|found| found.claim = Some("c2".into())),
            processing("found PV object pv but its pv.Spec.ClaimRef.UID c2 does not point to claim.UID c1"),
        ),
        (
            refused(Filesystem, &|found| found.mode = Block),
            unable("volume data has volumeMode Block, but is specified in volumeMounts"),
        ),
        (
            refused(Block, &|found| found.mode = Filesystem),
            unable("volume data has volumeMode Filesystem, but is specified in volumeDevices"),
        ),
        (
            refused(Filesystem, &|found| found.source = PersistentSource::Other),
            unable("failed to get Plugin from volumeSpec for volume \"pv\" err=no volume plugin matched"),
        ),
        (
            refused(Filesystem, &|found| found.affinity = Some(Vec::new())),
            "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms".into(),
        ),
        (
            refused(Block, &|found| found.affinity = Some(Vec::new())),
            "MapVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms".into(),
        ),
        (
            refused(Filesystem, &|found| found.source = local("/srv/../etc")),
            "MountVolume.SetUp failed for volume \"pv\" : invalid path: /srv/../etc must not contain '..'".into(),
        ),
        (
            refused(Block, &|found| found.source = local("/dev/..")),
            "MapVolume.MapBlockVolume failed for volume \"pv\" : invalid path: /dev/.. must not contain '..'".into(),
        ),
        (
            refused(Filesystem, &|found| found.source = host_path()),
            "MountVolume.SetUp failed for volume \"pv\" : invalid HostPath `/srv/../etc`: must not contain '..'"
                .into(),
        ),
        (
            refused(Block, &|found| found.source = host_path()),
            "MapVolume.FindMapperPluginBySpec failed for volume \"pv\" : no block volume plugin matched".into(),
        ),
        (
            refused(Filesystem, &|found| (found.source, found.mount_options) = (host_path(), vec!["ro".into()])),
            "MountVolume.MountOptionSupport check failed for volume \"pv\" : mount options are not supported for \
             this volume type"
                .into(),
        ),
    ] {
        assert_eq!(told, expected);
    }
}

#[test]
fn what_is_on_this_node_is_a_directory_a_path_or_a_device() {
    let name = data();
    let claimed = |read_only, found: PersistentVolume| {
        let (pod, wanted) = (pod(found.mode), ClaimVolume { read_only, ..wanted(false) });
        Asked { pod: &pod, volume: &name, claim: &wanted }.claimed(&claim(), found, None).unwrap()
    };
    let directory = |path: &str, read_only, options: &[&str], is_of_one_pod| {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Claimed::Local(LocalVolume {
            name: "pv".into(),
            path: path.into(),
            read_only,
            options,
            is_of_one_pod,
        })
    };
    let plain = volume(local("/srv/data"), VolumeMode::Filesystem);
    assert_eq!(claimed(false, plain.clone()), directory("/srv/data", false, &[], false));
    let relative = volume(local("srv/data"), VolumeMode::Filesystem);
    assert_eq!(claimed(true, relative), directory("/srv/data", true, &[], false));
    let strict = PersistentVolume { is_of_one_pod: true, mount_options: vec!["noexec".into()], ..plain };
    assert_eq!(claimed(false, strict), directory("/srv/data", false, &["noexec"], true));
    let kind = HostPathType::DirectoryOrCreate;
    let path = PersistentSource::HostPath { path: "/srv".into(), kind };
    let expected = Claimed::Path { name: "pv".into(), path: "/srv".into(), kind };
    assert_eq!(claimed(false, volume(path, VolumeMode::Filesystem)), expected);
    let device = volume(local("/dev/loop7"), VolumeMode::Block);
    assert_eq!(claimed(true, device), Claimed::Device { name: "pv".into(), path: "/dev/loop7".into() });
}

#[test]
fn a_volume_is_had_where_the_labels_of_the_node_are_its() {
    let (pod, name, wanted) = (pod(VolumeMode::Filesystem), data(), wanted(false));
    let asked = Asked { pod: &pod, volume: &name, claim: &wanted };
    let term = |values: &[&str]| NodeTerm {
        labels: vec![Requirement {
            key: "zone".into(),
            operator: Operator::In,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }],
        fields: Vec::new(),
    };
    let node = NodeInfo { labels: [("zone".into(), "a".into())].into(), ..NodeInfo::default() };
    for (terms, node, expected) in [
        (vec![term(&["a"])], Some(&node), true),
        (vec![term(&["b"]), term(&["c", "a"])], Some(&node), true),
        (vec![term(&["b"])], Some(&node), false),
        (vec![NodeTerm::default()], Some(&node), false),
        (vec![term(&["a"])], None, false),
    ] {
        let found = PersistentVolume {
            affinity: Some(terms.clone()),
            ..volume(local("/srv"), VolumeMode::Filesystem)
        };
        assert_eq!(asked.claimed(&claim(), found, node).is_ok(), expected, "{terms:?}");
    }
}

/// They have one mount.
#[test]
fn of_several_volumes_with_a_claim_the_last_that_is_used_says_whether_it_is_written_to() {
    for (last, is_used, expected) in [(true, true, true), (false, true, false), (true, false, false)] {
        let mut pod = pod(VolumeMode::Filesystem);
        let of = |read_only| ClaimVolume { read_only, ..wanted(false) };
        let volume_of = |name: &str, claim: ClaimVolume| Volume {
            name: VolumeName::new(name),
            source: VolumeSource::Claim(claim),
        };
        let other = ClaimVolume { name: "other".into(), ..of(!expected) };
        pod.volumes = vec![
            volume_of("data", of(if is_used { !last } else { expected })),
            volume_of("again", of(last)),
            volume_of("of-another", other),
        ];
        let main = std::sync::Arc::make_mut(&mut pod.containers[0]);
        let mount = main.mounts[0].clone();
        main.mounts.push(Mount { volume: VolumeName::new("of-another"), ..mount.clone() });
        if is_used {
            main.mounts.push(Mount { volume: VolumeName::new("again"), ..mount });
        }
        for volume in pod.volumes.iter().filter(|volume| volume.name.as_str() != "of-another") {
            let found = self::volume(local("/srv"), VolumeMode::Filesystem);
            let asked = Asked { pod: &pod, volume: &volume.name, claim: volume.claim().unwrap() };
            let Claimed::Local(made) = asked.claimed(&claim(), found, None).unwrap() else { panic!() };
            assert_eq!(made.read_only, expected, "{last} {is_used} {}", volume.name);
        }
    }
}
