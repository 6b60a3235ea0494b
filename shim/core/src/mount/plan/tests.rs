use super::*;
use crate::mount::{Beneath, Device, Format, Root};

const ROOTS: Roots<'_> = Roots { layers: "/b/layers", containerd: Some("/c") };

fn mount(kind: &str, source: &str, options: &[&str]) -> Mount {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    Mount { kind: kind.to_owned(), source: source.to_owned(), target: String::new(), options }
}

fn at(mut mount: Mount, target: &str) -> Mount {
    mount.target = target.to_owned();
    mount
}

fn steps(mounts: &[Mount]) -> Vec<Step> {
    plan(mounts, &ROOTS).unwrap().steps
}

fn layers(mounts: &[Mount]) -> Vec<Option<usize>> {
    steps(mounts).iter().map(|step| step.place.layer).collect()
}

fn layer(path: &str) -> Location {
    Location::Layer(path.to_owned())
}

#[test]
fn ordinary_mounts_are_the_root_file_system() {
    let mounts = [
        mount("overlay", "overlay", &["lowerdir=/a"]),
        at(mount("bind", "/x", &["ro", "rbind"]), "/./data/"),
    ];
    let made = plan(&mounts, &ROOTS).unwrap();
    assert!(!made.has_layers());
    let places: Vec<_> =
        made.steps.iter().map(|step| (step.place.layer, step.place.below.as_str())).collect();
    assert_eq!(places, [(None, ""), (None, "data")]);
    assert_eq!(plan(&[], &ROOTS).unwrap().steps, []);
    assert_eq!(layers(&[mount("erofs", "/c/layer.erofs", &["ro", "loop"])]), [None]);
}

/// What the erofs snapshotter writes for a container over three layers, with a writable image (`default_size`).
#[test]
fn the_erofs_snapshotters_mounts_in_block_mode() {
    let steps = steps(&[
        mount(
            "mkfs/ext4",
            "/c/s/9/rwlayer.img",
            &["X-containerd.mkfs.fs=ext4", "X-containerd.mkfs.size=1048576", "rw", "loop"],
        ),
        mount("erofs", "/c/s/3/layer.erofs", &["ro", "loop"]),
        mount(
            "erofs",
            "/c/s/2/fsmeta.erofs",
            &["ro", "loop", "device=/c/s/1/layer.erofs", "device=/c/s/2/layer.erofs"],
        ),
        mount(
            "format/mkdir/overlay",
            "overlay",
            &[
                "X-containerd.mkdir.path={{ mount 0 }}/upper:0755",
                "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
                "workdir={{ mount 0 }}/work",
                "upperdir={{ mount 0 }}/upper",
                "lowerdir={{ overlay 1 2 }}",
                "index=off",
            ],
        ),
    ]);
    assert_eq!(
        steps.iter().map(|step| step.place.layer).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), None]
    );
    let image = steps[0].image.as_ref().unwrap();
    assert_eq!(image.path, Beneath { root: Root::Containerd, path: "s/9/rwlayer.img".to_owned() });
    assert_eq!((image.format, image.size_bytes), (Format::Ext4, 1 << 20));
    assert_eq!(steps[0].options.device, Some(Device::Cached));
    assert_eq!((&steps[1].kind, steps[1].options.is_read_only()), (&MountType::Erofs, true));
    assert_eq!(steps[2].data.len(), 2);
    let made: Vec<&str> = steps[3].directories.iter().map(|directory| directory.path.path.as_str()).collect();
    assert_eq!(made, ["0/upper", "0/work"]);
    let Datum::Paths { paths, .. } = &steps[3].data[2] else { panic!() };
    assert_eq!(*paths, [Some(layer("1")), Some(layer("2"))]);
    let Datum::Paths { paths, .. } = &steps[3].data[1] else { panic!() };
    assert_eq!(*paths, [Some(layer("0/upper"))]);
    assert_eq!(steps[3].data[3], Datum::Plain("index=off".to_owned()));
}

#[test]
fn a_view_of_one_layer_is_bound() {
    let steps =
        steps(&[mount("erofs", "/l", &["ro"]), mount("format/bind", "{{ mount 0 }}", &["ro", "rbind"])]);
    assert_eq!((&steps[1].kind, &steps[1].source), (&MountType::Bind, &layer("0")));
    assert_eq!(steps[1].options.set, flag::RDONLY | flag::BIND | flag::REC);
}

#[test]
fn a_loop_device_serves_a_later_mount() {
    let steps = steps(&[
        mount("mkfs/loop", "/c/disk.img", &["X-containerd.mkfs.size=1MiB", "X-containerd.mkfs.fs=xfs"]),
        mount("format/xfs", "{{ mount 0 }}", &[]),
    ]);
    assert_eq!((&steps[0].kind, steps[0].place.layer), (&MountType::Loop, Some(0)));
    assert_eq!(
        (&steps[1].kind, &steps[1].source),
        (&MountType::Other("xfs".to_owned()), &Location::Device(0))
    );
    assert_eq!(layers(&[mount("loop", "/i", &[]), mount("ext4", "/i", &["loop"])]), [Some(0), None]);
    assert_eq!(plan(&[mount("loop", "/i", &[])], &ROOTS), Err(PlanError::NoRoot));
}

#[test]
fn prefixes_apply_in_the_order_in_which_they_are_written() {
    let options = ["X-containerd.mkdir.path={{ mount 0 }}/x"];
    let bind = mount("bind", "/a", &[]);
    plan(&[bind.clone(), mount("format/mkdir/bind", "/b", &options)], &ROOTS).unwrap();
    let early = plan(&[bind, mount("mkdir/format/bind", "/b", &options)], &ROOTS);
    assert_eq!(early, Err(PlanError::Outside("{{ mount 0 }}/x".to_owned())));
    // Without the prefix a template is text, and an option for mkdir nobody's.
    plan(&[mount("overlay", "overlay", &["lowerdir={{ mount 0 }}"])], &ROOTS).unwrap();
    assert!(matches!(plan(&[mount("bind", "/b", &options)], &ROOTS), Err(PlanError::Unconsumed(_))));
}

#[test]
fn types_are_names_behind_known_prefixes() {
    for kind in ["", "format/", "a b", "ext4/", "fuse/x", "format/format/bind", "nosuch/bind", "/bind", "ö"]
    {
        let refused = plan(&[mount(kind, "/s", &[])], &ROOTS);
        assert!(matches!(refused, Err(PlanError::Kind { .. })), "{kind}: {refused:?}");
    }
    let fuse = steps(&[mount("fuse3.fuse-overlayfs", "overlay", &["lowerdir=/a", "ro"])]).remove(0);
    let options = vec!["lowerdir=/a".to_owned(), "ro".to_owned()];
    assert_eq!(
        fuse.kind,
        MountType::Fuse { helper: "mount.fuse3", name: "fuse-overlayfs".to_owned(), options }
    );
}

#[test]
fn a_target_stays_below_the_root_file_system() {
    for target in ["..", "/../x", "a/../../x", "a\0b"] {
        let refused = plan(&[at(mount("bind", "/s", &[]), target)], &ROOTS);
        assert_eq!(refused, Err(PlanError::Target(target.to_owned())));
    }
    // Also when a template says so.
    let mounts =
        [at(mount("bind", "/s", &[]), "../.."), at(mount("format/bind", "/s", &[]), "{{ target 0 }}")];
    assert!(matches!(plan(&mounts, &ROOTS), Err(PlanError::Target(_))));
}

#[test]
fn lists_are_bounded() {
    let many = vec![mount("bind", "/s", &[]); MOUNTS_MAX + 1];
    assert_eq!(plan(&many, &ROOTS), Err(PlanError::TooMany(MOUNTS_MAX + 1)));
    let mut deepest = vec![mount("erofs", "/s", &["ro"]); MOUNTS_MAX - 1];
    deepest.push(mount("format/overlay", "overlay", &["lowerdir={{ overlay 0 510 }}"]));
    let made = plan(&deepest, &ROOTS).unwrap();
    let Datum::Paths { paths, .. } = &made.steps.last().unwrap().data[0] else { panic!() };
    assert_eq!(paths.len(), MOUNTS_MAX - 1);
    let bomb = vec!["{{ overlay 0 510 }}"; 500];
    deepest.pop();
    deepest.push(mount("format/overlay", "overlay", &bomb));
    assert!(matches!(plan(&deepest, &ROOTS), Err(PlanError::TooLong(_))));
}

proptest::proptest! {
    /// Nothing that a client writes makes the planner panic, or lead out of the directories.
    #[test]
    fn any_list_ends_in_a_plan_or_an_error(
        kinds in proptest::collection::vec("(format/|mkdir/|mkfs/){0,3}(overlay|bind|erofs|loop|ext4|[a-z/.]{0,6})", 1..4),
        text in "(/b/layers/|/c/|[{}]{2}| mount | overlay | source |[0-9]|[:/.,\\\\=]|[a-zä]){0,12}",
        options in proptest::collection::vec(
            "(X-containerd.mkdir.path=|X-containerd.mkfs.size=|lowerdir=|uidmap=|gidmap=)(/b/layers/|[{}]{2}| mount 0 |[0-9:/.]|\\PC){0,8}",
            0..4,
        ),
    ) {
        let mount = |kind: String| {
            Mount { kind, source: text.clone(), target: text.clone(), options: options.clone() }
        };
        let mounts: Vec<Mount> = kinds.into_iter().map(mount).collect();
        if let Ok(made) = plan(&mounts, &ROOTS) {
            proptest::prop_assert_eq!(made.steps.len(), mounts.len());
            for step in made.steps {
                proptest::prop_assert!(step.place.below.split('/').all(|part| part != ".."));
                for directory in step.directories {
                    proptest::prop_assert!(directory.path.path.split('/').all(|part| !part.is_empty() && part != ".."));
                }
            }
        }
    }
}
