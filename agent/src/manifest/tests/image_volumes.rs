//! Volumes that are images.

use berth_core::spec::{ImagePullPolicy, VolumeSource};

use super::*;

fn manifest(image: &str) -> String {
    pod(&format!("volumes: [{{name: v, image: {image}}}]"), "volumeMounts: [{name: v, mountPath: /v}]")
}

#[test]
fn an_image_is_pulled_as_its_tag_asks_for() {
    use ImagePullPolicy::{Always, IfNotPresent, Never};
    let digest = format!("@sha256:{}", "0".repeat(64));
    for (image, expected) in [
        ("{reference: data}".to_owned(), Always),
        ("{reference: 'r.example:5000/data'}".to_owned(), Always),
        ("{reference: 'data:latest'}".to_owned(), Always),
        ("{reference: 'data:1'}".to_owned(), IfNotPresent),
        (format!("{{reference: 'data{digest}'}}"), IfNotPresent),
        (format!("{{reference: 'data:latest{digest}'}}"), Always),
        (format!("{{reference: 'data:1{digest}'}}"), IfNotPresent),
        // What is no name is told when it is looked for.
        ("{reference: UPPER}".to_owned(), IfNotPresent),
        ("{reference: 'data:1', pullPolicy: Always}".to_owned(), Always),
        ("{reference: data, pullPolicy: IfNotPresent}".to_owned(), IfNotPresent),
        ("{reference: data, pullPolicy: Never}".to_owned(), Never),
    ] {
        let Manifest { pod, unsupported, unknown } = one(&manifest(&image));
        let VolumeSource::Image { pull_policy, .. } = pod.volumes[0].source else { panic!("{image}") };
        assert_eq!((pull_policy, unsupported, unknown), (expected, vec![], vec![]), "{image}");
    }
}

#[test]
fn an_image_without_a_name_or_with_a_made_up_policy_is_a_fault() {
    for (image, expected) in [
        ("{}", "spec.volumes[0].image.reference: must be the name of an image"),
        ("{reference: ''}", "spec.volumes[0].image.reference: must be the name of an image"),
        (
            "{reference: 'a:1', pullPolicy: Sometimes}",
            "spec.volumes[0].image.pullPolicy: `Sometimes` is not one of",
        ),
    ] {
        let told = faults(&manifest(image));
        assert!(told.contains(expected), "{image}: {told}");
    }
    let two = faults(&pod("volumes: [{name: v, image: {reference: 'a:1'}, emptyDir: {}}]", ""));
    assert!(two.contains("a volume is of one kind, this one of emptyDir and image"), "{two}");
}
