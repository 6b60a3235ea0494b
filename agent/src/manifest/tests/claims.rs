//! Volumes of claims.

use berth_core::{
    id::VolumeName,
    spec::{ClaimVolume, Source, VolumeDevice, VolumeSource},
};

use crate::manifest::pod_from_json;

#[test]
fn a_claim_is_named_by_the_pod_or_after_it() {
    let pod = |volumes: &str, container: &str, source| {
        let text = format!(
            r#"{{"metadata": {{"name": "web", "namespace": "shop", "uid": "u1"}}, "spec": {{"volumes": [{volumes}],
                "containers": [{{"name": "c", "image": "i" {container}}}]}}}}"#
        );
        pod_from_json(&text, source)
    };
    let api = |volumes: &str, container: &str| pod(volumes, container, Source::Api);
    let claim = |name: &str, read_only, is_of_pod| {
        VolumeSource::Claim(ClaimVolume { name: name.to_owned(), read_only, is_of_pod })
    };
    let named = r#"{"name": "v", "persistentVolumeClaim": {"claimName": "mine"}}"#;
    let read = r#"{"name": "v", "persistentVolumeClaim": {"claimName": "mine", "readOnly": true}}"#;
    let own = r#"{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}"#;
    for (written, expected) in [
        (named, claim("mine", false, false)),
        (read, claim("mine", true, false)),
        (own, claim("web-v", false, true)),
    ] {
        assert_eq!(api(written, "").unwrap().volumes[0].source, expected);
        for source in [Source::File, Source::Http] {
            let faults = pod(written, "", source).unwrap_err().to_string();
            assert!(
                faults.contains("needs an object of the API server, which a static pod may not use"),
                "{faults}"
            );
        }
    }
    let device = r#", "volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]"#;
    let devices = api(named, device).unwrap().containers[0].devices.clone();
    assert_eq!(devices, [VolumeDevice { volume: VolumeName::new("v"), path: "/dev/v".to_owned() }]);
    let both = format!(r#"{device}, "volumeMounts": [{{"name": "v", "mountPath": "/v"}}]"#);
    for (volumes, container, why) in [
        (
            r#"{"name": "v", "persistentVolumeClaim": {"claimName": "A/b"}}"#,
            "",
            "`A/b` is not the name of an object",
        ),
        (named, r#", "volumeDevices": [{"name": "w", "devicePath": "/d"}]"#, "the pod has no volume `w`"),
        (named, r#", "volumeDevices": [{"name": "v", "devicePath": "d"}]"#, "`d` is not an absolute path"),
        (
            named,
            r#", "volumeDevices": [{"name": "v", "devicePath": "/a/../d"}]"#,
            "`/a/../d` is not an absolute path",
        ),
        (named, both.as_str(), "volumeDevices[0].name: `v` is given twice"),
        (r#"{"name": "v", "emptyDir": {}}"#, device, "only a volume of a claim can be a device"),
    ] {
        let faults = api(volumes, container).unwrap_err().to_string();
        assert!(faults.contains(why), "{container}: {faults}");
    }
}
