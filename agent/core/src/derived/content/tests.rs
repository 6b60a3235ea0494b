use super::*;
use crate::{
    fixtures,
    id::VolumeName,
    spec::{ContentKind, Mount, MountPropagation, ObjectFiles, ObjectKind, RecursiveReadOnly},
};

fn content(kind: ContentKind, sources: Vec<Projection>) -> Volume {
    let source = VolumeSource::Content(ContentVolume { kind, default_mode: 0o644, sources });
    Volume { name: VolumeName::new("v"), source }
}

#[test]
fn a_volume_shows_the_objects_of_its_own_namespace() {
    let files = ObjectFiles { kind: ObjectKind::Secret, name: "s".into(), items: vec![], optional: false };
    let volume =
        content(ContentKind::Projected, vec![Projection::Downward(vec![]), Projection::Object(files)]);
    let pod = fixtures::pod(vec![fixtures::container("main")]);
    let key = |kind, namespace: &str, name: &str| ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    for (key, expected) in [
        (key(ObjectKind::Secret, "shop", "s"), true),
        (key(ObjectKind::ConfigMap, "shop", "s"), false),
        (key(ObjectKind::Secret, "other", "s"), false),
        (key(ObjectKind::Secret, "shop", "t"), false),
    ] {
        assert_eq!(shows(&pod, &volume, &key), expected, "{key:?}");
    }
    assert!(shows_pod(&volume));
    assert!(!shows_pod(&content(ContentKind::ConfigMap, vec![])));
}

#[test]
fn the_user_of_all_containers_owns_files_and_nobody_where_they_differ() {
    for (of_pod, of_containers, expected) in [
        (None, [None, None], None),
        (Some(7), [None, None], Some(7)),
        (Some(7), [Some(8), None], None),
        (None, [Some(8), Some(8)], Some(8)),
        (None, [Some(8), None], None),
        (Some(7), [Some(8), Some(8)], Some(8)),
        (Some(0), [None, Some(0)], Some(0)),
    ] {
        let containers = of_containers.map(|user| {
            let mut container = fixtures::container("main");
            container.security.run_as_user = user;
            container
        });
        let mut pod = fixtures::pod(containers.to_vec());
        pod.security.run_as_user = of_pod;
        assert_eq!(fs_user(&pod), expected, "{of_pod:?} {of_containers:?}");
    }
}

#[test]
fn what_is_mounted_within_a_volume_gets_its_directory_there() {
    for (mounts, expected) in [
        (vec![("v", "/etc/app")], vec![]),
        (vec![("v", "/etc/app"), ("w", "/etc/app/more")], vec!["more"]),
        (vec![("w", "/etc/app/more/"), ("v", "/etc/app/")], vec!["more"]),
        (vec![("v", "/etc/app"), ("w", "/etc/application")], vec![]),
        (
            vec![("v", "/a"), ("w", "/a/b"), ("x", "/a/b/c"), ("y", "/a/b-c"), ("z", "/a/d/e")],
            vec!["b", "b-c", "d/e"],
        ),
        (vec![("v", "/a"), ("w", "/a/../etc")], vec![]),
        (vec![("v", "/"), ("w", "/data")], vec!["data"]),
    ] {
        let mut container = fixtures::container("main");
        container.mounts = mounts
            .iter()
            .map(|(volume, path)| Mount {
                volume: VolumeName::new(*volume),
                path: (*path).to_owned(),
                sub_path: SubPath::Root,
                read_only: false,
                recursive_read_only: RecursiveReadOnly::Disabled,
                propagation: MountPropagation::Private,
            })
            .collect();
        let pod = fixtures::pod(vec![container]);
        let found = nested_mount_points(&pod, &VolumeName::new("v"));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{mounts:?}");
    }
}
