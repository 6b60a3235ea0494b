use proptest::prelude::*;

use super::*;
use crate::{
    fixtures,
    id::ImageRef,
    spec::{HostPathType, ImagePullPolicy, Medium},
};

fn paths() -> Paths {
    fixtures::node().paths
}

#[test]
fn places_that_tools_know() {
    let (paths, uid, web) = (paths(), PodUid::new("0b1c-2d"), ContainerName::new("web"));
    let name = PodName { namespace: "shop".into(), name: "web-node-1".into() };
    let data = VolumeName::new("data");
    let id = ContainerId::from_known("88461b86926677a2");
    let pod = "/var/lib/kubelet/pods/0b1c-2d";
    let empty_dir = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None };
    let host_path = VolumeSource::HostPath { path: "/srv/x".into(), kind: HostPathType::Unset };
    let image =
        VolumeSource::Image { image: ImageRef::new("data:1"), pull_policy: ImagePullPolicy::IfNotPresent };
    for (path, expected) in [
        (pod_dir(&paths, &uid), pod.to_owned()),
        (pod_mark(&paths, &uid), format!("{pod}/berth-run-dir")),
        (volumes_dir(&paths, &uid), format!("{pod}/volumes")),
        (plugins_dir(&paths, &uid), format!("{pod}/plugins")),
        (
            volume(&paths, &uid, &data, &empty_dir).unwrap(),
            format!("{pod}/volumes/kubernetes.io~empty-dir/data"),
        ),
        (volume(&paths, &uid, &data, &host_path).unwrap(), "/srv/x".into()),
        (volume(&paths, &uid, &data, &image).unwrap(), format!("{pod}/volumes/kubernetes.io~image/data")),
        (local_volume(&paths, &uid, "pv-1"), format!("{pod}/volumes/kubernetes.io~local-volume/pv-1")),
        (
            local_volume_ready(&paths, &uid, "pv-1"),
            format!("{pod}/plugins/kubernetes.io~local-volume/pv-1/ready"),
        ),
        (empty_dir_ready(&paths, &uid, &data), format!("{pod}/plugins/kubernetes.io~empty-dir/data/ready")),
        (etc_hosts(&paths, &uid), format!("{pod}/etc-hosts")),
        (resolv_conf(&paths, &uid, 0), format!("{pod}/resolv.conf")),
        (resolv_conf(&paths, &uid, 2), format!("{pod}/resolv.conf.2")),
        (etc_hostname(&paths, &uid, 0), format!("{pod}/hostname")),
        (etc_hostname(&paths, &uid, 1), format!("{pod}/hostname.1")),
        (container_dir(&paths, &uid, &web), format!("{pod}/containers/web")),
        (termination_log(&paths, &uid, &web, &id), format!("{pod}/containers/web/88461b86")),
        (image_volume(&paths, &uid, &web, &id, 3), format!("{pod}/containers/web/88461b86-volumes/3")),
        (volume_subpath(&paths, &uid, &data, &web, 1), format!("{pod}/volume-subpaths/data/web/1")),
        (pod_logs(&paths, &name, &uid), "/var/log/pods/shop_web-node-1_0b1c-2d".into()),
        (
            container_log(&paths, &name, &uid, &web, 7),
            "/var/log/pods/shop_web-node-1_0b1c-2d/web/7.log".into(),
        ),
        (
            log_link(&paths, &name, &web, &id),
            "/var/log/containers/web-node-1_shop_web-88461b86926677a2.log".into(),
        ),
        (record("/run/berth", &uid), "/run/berth/pods/0b1c-2d.json".into()),
    ] {
        assert_eq!(path, expected);
    }
}

#[test]
fn a_shims_socket_fits_an_address() {
    let id = SandboxId::of(&PodUid::new("0b1c"), 0);
    let socket = shim_socket("/run/berth", &id);
    assert_eq!(socket, format!("/run/berth/shim/{}.sock", &id.as_str()[..20]));
    assert!(socket.len() < 108);
    assert_eq!(netns(&id), format!("/run/netns/berth-{}", &id.as_str()[..20]));
}

/// A pod's name may have 253 characters, beside its namespace of 63.
#[test]
fn logs_end_with_the_uid_whatever_their_pod_is_called() {
    let (paths, uid) = (paths(), PodUid::new("0b1c-2d"));
    let logs = |name: &str| pod_logs(&paths, &PodName { namespace: "shop".into(), name: name.into() }, &uid);
    for name in ["web", &"n".repeat(253), "a/../b"] {
        let dir = logs(name);
        let last = dir.rsplit('/').next().unwrap();
        assert!(last.ends_with("_0b1c-2d") && last.len() <= NAME_BYTES_MAX, "{dir}");
        assert_eq!(dir, format!("/var/log/pods/{last}"));
    }
    assert_ne!(logs(&"n".repeat(253)), logs(&"n".repeat(252)));
}

#[test]
fn a_link_is_cut_to_a_file_name() {
    let name = PodName { namespace: "n".repeat(63), name: "p".repeat(253) };
    let link = log_link(&paths(), &name, &ContainerName::new("web"), &ContainerId::from_known("88"));
    let file = link.rsplit('/').next().unwrap();
    assert_eq!(file.len(), 255);
    assert!(std::path::Path::new(file).extension().is_some_and(|end| end == "log"));
}

#[test]
fn names_that_are_no_component_become_one() {
    for name in ["web", "a.b", "A_1-2", "x"] {
        assert_eq!(component(name), name);
    }
    let mut seen = std::collections::BTreeSet::new();
    for name in
        ["", ".", "..", "a/b", "../x", "a..b", "a\0", "a\n", "é", " ", "a:b", &"x".repeat(256), "~", "$"]
    {
        let safe = component(name);
        assert!(safe.starts_with("x-") && safe.len() == 34, "{name:?}: {safe}");
        assert!(seen.insert(safe.into_owned()), "{name:?}");
    }
}

proptest! {
    #[test]
    fn no_name_leaves_its_parent(uid in "\\PC{0,40}|[./]{0,8}", name in "\\PC{0,40}|[./\0\n]{0,8}") {
        let paths = paths();
        let (uid, container) = (PodUid::new(uid), ContainerName::new(name.clone()));
        let pod = PodName { namespace: name.clone(), name: name.clone() };
        let id = ContainerId::from_known(name.clone());
        for (path, depth) in [
            (pod_dir(&paths, &uid), 5),
            (container_dir(&paths, &uid, &container), 7),
            (termination_log(&paths, &uid, &container, &id), 8),
            (volume_subpath(&paths, &uid, &VolumeName::new(name.clone()), &container, 0), 9),
            (container_log(&paths, &pod, &uid, &container, 0), 6),
            (log_link(&paths, &pod, &container, &id), 4),
            (record("/run/berth", &uid), 4),
            (shim_socket("/run/berth", &SandboxId::from_known(name)), 4),
        ] {
            prop_assert_eq!(path.matches('/').count(), depth, "{:?}", path);
            prop_assert!(!path.split('/').any(|part| part == "..") && !path.contains('\0'), "{:?}", path);
            prop_assert!(path.split('/').skip(1).all(|part| (1..=255).contains(&part.len())), "{:?}", path);
        }
    }
}

#[test]
fn the_mark_of_a_local_volume_is_found_by_where_it_is_bound() {
    let (paths, uid) = (paths(), PodUid::new("0b1c-2d"));
    let pods = pods_dir(&paths);
    let ready = |place: &str| local_volume_ready_at(&pods, place);
    for name in ["pv-1", "pv/1"] {
        assert_eq!(ready(&local_volume(&paths, &uid, name)), Some(local_volume_ready(&paths, &uid, name)));
    }
    for place in [
        pods.clone(),
        pod_dir(&paths, &uid),
        format!("{}/kubernetes.io~local-volume", volumes_dir(&paths, &uid)),
        format!("{}/kubernetes.io~local-volume/a/b", volumes_dir(&paths, &uid)),
        format!("{}/kubernetes.io~empty-dir/a", volumes_dir(&paths, &uid)),
        format!("{}/kubernetes.io~local-volume/a", plugins_dir(&paths, &uid)),
        format!("{pods}-of-others/u/volumes/kubernetes.io~local-volume/a"),
        "/mnt/u/volumes/kubernetes.io~local-volume/a".to_owned(),
    ] {
        assert_eq!(ready(&place), None, "{place}");
    }
}
