//! Nothing that a pod, an image or its files say makes the builder panic or lets a path out.

use proptest::prelude::*;

use super::Bench;
use crate::{
    id::{ContainerName, PodUid, VolumeName},
    oci::{NodeParts, complete},
    selinux::SeLinux,
    spec::{
        EnvSource, EnvVar, Medium, Mount, MountPropagation, RecursiveReadOnly, SubPath, Volume, VolumeSource,
    },
};

/// Text with the characters that have a meaning somewhere.
fn hostile() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            any::<char>().prop_map(String::from),
            "[a-z0-9]{1,4}",
            prop::sample::select(
                ["..", "/", ":", "$(", ")", "$$", "=", "\n", "\0", "-", "_", ",", "@", "/proc/self/fd/", "0"]
                    .as_slice()
            )
            .prop_map(str::to_owned),
        ],
        0..12,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn hostile_text_makes_a_plan_below_the_pods_directory_or_an_error(texts in proptest::collection::vec(hostile(), 15)) {
        let text = |index: usize| texts[index].clone();
        let bench = Bench::with(|bench| {
            bench.node.se_linux = Some(SeLinux::of("process = a:b:c:s0\nfile = d:e:f:s0", 1024));
            bench.level = Some("s0:c1,c2");
            bench.container.security.se_linux.kind = text(14);
            bench.pod.volumes = vec![Volume {
                name: VolumeName::new(text(12)),
                source: VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None },
            }];
            bench.pod.uid = PodUid::new(text(0));
            bench.container.name = ContainerName::new(text(1));
            bench.container.env = vec![
                EnvVar { name: text(2), source: EnvSource::Value(text(3)) },
                EnvVar { name: "F".into(), source: EnvSource::Field(format!("metadata.labels['{}']", text(4))) },
            ];
            bench.container.args = vec![text(5)];
            bench.container.working_dir = Some(format!("/{}", text(6)));
            bench.image.config.user = text(7);
            bench.image.config.volumes = vec![text(8)];
            bench.image.config.env = vec![text(9)];
            bench.accounts.passwd = text(10);
            bench.accounts.group = text(11);
            bench.volumes.insert(VolumeName::new(text(12)), "/var/lib/kubelet/pods/u/volumes/data".into());
            bench.container.mounts = vec![Mount {
                volume: VolumeName::new(text(12)),
                path: text(13),
                sub_path: SubPath::Expression(text(5)),
                read_only: false,
                recursive_read_only: RecursiveReadOnly::Disabled,
                propagation: MountPropagation::Private,
            }];
        });
        let Ok(plan) = bench.plan() else { return Ok(()) };
        let pods = "/var/lib/kubelet/pods/";
        let made = plan.files.iter().map(|file| &file.path)
            .chain(plan.image_volumes.iter().map(|volume| &volume.target))
            .chain(plan.sub_paths.iter().map(|bind| &bind.target));
        for path in made {
            prop_assert!(path.starts_with(pods) && !path.contains("..") && !path.contains('\0'), "{path:?}");
            prop_assert!(path.matches('/').count() >= 6, "{path:?}");
        }
        for place in plan.relabel.iter().flat_map(|relabel| &relabel.places) {
            prop_assert!(place.root.starts_with(pods) && !place.root.contains(".."), "{place:?}");
        }
        let label = plan.spec.process().as_ref().and_then(|process| process.selinux_label().as_deref());
        prop_assert!(label.is_some_and(|label| label.split(':').count() == 5 && !label.contains(['"', ' ', '\0'])));
        for volume in &plan.image_volumes {
            prop_assert!(!volume.image_path.split('/').any(|part| part == ".."));
        }
        for bind in &plan.sub_paths {
            prop_assert!(!bind.sub_path.starts_with('/') && !bind.sub_path.split('/').any(|part| part == ".."));
        }
        let log = &plan.log_path;
        prop_assert!(log.starts_with("/var/log/pods/") && log.matches('/').count() == 6, "{log:?}");
        let json = serde_json::to_string(&plan.spec).unwrap();
        let back: oci_spec::runtime::Spec = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&back, &plan.spec);
    }

    #[test]
    fn a_hostile_seccomp_file_is_a_profile_or_an_error(text in ".{0,200}") {
        let bench = Bench::with(|bench| {
            bench.container.security.seccomp = Some(crate::spec::Seccomp::Localhost("a".into()));
        });
        let parts = NodeParts { seccomp: Some(&text), ..NodeParts::default() };
        prop_assert!(complete(&bench.plan().unwrap(), parts).is_err());
    }
}
