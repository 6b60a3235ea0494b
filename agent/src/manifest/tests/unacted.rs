//! `docs/differences.md` names the fields of pods that are not acted on, all of them and nothing else.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, EphemeralContainer, PodSecurityContext, PodSpec, SecurityContext, Volume,
    VolumeMount,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor, value::Error},
    forward_to_deserialize_any,
};
use serde_json::{Value, json};

use crate::manifest::api_pod;

const PAGE: &str = include_str!("../../../../docs/differences.md");

/// Takes from a type of the API the names of its fields.
struct Names<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(fields);
        Err(Error::custom("its names are known"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

/// The fields of a type below `place` that are not among those of `acted_on`, which it has to have.
fn others<T: for<'de> Deserialize<'de>>(place: &str, acted_on: &str) -> Vec<String> {
    let mut names = Vec::new();
    assert!(T::deserialize(Names(&mut names)).is_err());
    let acted_on: BTreeSet<&str> = acted_on.split_whitespace().collect();
    let all: BTreeSet<&str> = names.into_iter().collect();
    assert_eq!(&acted_on - &all, BTreeSet::new(), "{place}");
    (&all - &acted_on).into_iter().map(|name| format!("{place}{name}")).collect()
}

/// The first cells of the table.
fn named() -> BTreeSet<String> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Fields of pods")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_field_of_pods_is_acted_on_or_named() {
    let pod = "activeDeadlineSeconds affinity containers dnsConfig dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC \
        hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead priority \
        priorityClassName readinessGates resources restartPolicy runtimeClassName securityContext serviceAccountName setHostnameAsFQDN \
        shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations volumes";
    let container = "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy resources \
        restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty \
        volumeDevices volumeMounts workingDir";
    let security = "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot \
        runAsUser seLinuxOptions seccompProfile";
    let pod_security = "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxChangePolicy seLinuxOptions \
        seccompProfile supplementalGroups supplementalGroupsPolicy sysctls";
    let mount = "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr";
    let mut all: BTreeSet<String> = [
        others::<PodSpec>("spec.", pod),
        others::<Container>("containers[].", container),
        others::<SecurityContext>("containers[].securityContext.", security),
        others::<PodSecurityContext>("spec.securityContext.", pod_security),
        others::<VolumeMount>("volumeMounts[].", mount),
        others::<EnvVarSource>(
            "env[].valueFrom.",
            "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Kinds of volumes together.
    all.insert("spec.volumes[].*".to_owned());
    assert_eq!(named(), all);
}

/// An ephemeral container has the fields of others that it may have, and a target.
#[test]
fn every_field_of_an_ephemeral_container_is_acted_on_or_refused() {
    let acted_on = "args command env envFrom image imagePullPolicy name securityContext stdin stdinOnce targetContainerName \
        terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir";
    let get = json!({ "httpGet": { "port": 80 } });
    let values = [
        ("lifecycle", json!({ "preStop": { "sleep": { "seconds": 1 } } })),
        ("livenessProbe", get.clone()),
        ("ports", json!([{ "containerPort": 80 }])),
        ("readinessProbe", get.clone()),
        ("resizePolicy", json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }])),
        ("resources", json!({ "limits": { "cpu": "1" } })),
        ("restartPolicy", json!("Never")),
        ("restartPolicyRules", json!([{ "action": "Restart" }])),
        ("startupProbe", get),
    ];
    let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    assert_eq!(others::<EphemeralContainer>("", acted_on), names);
    let with = |name: &str, value: Value| {
        let mut container = json!({ "name": "e", "image": "i", "resources": {} });
        container[name] = value;
        fate(|pod| pod["spec"]["ephemeralContainers"] = json!([container]))
    };
    assert_eq!(with("targetContainerName", json!("main")), Fate::Nothing);
    for (name, value) in values {
        assert_eq!(with(name, value), Fate::Refused, "{name}");
    }
}

/// What becomes of a pod with a field.
#[derive(Debug, PartialEq)]
enum Fate {
    /// It is refused.
    Refused,
    /// It runs without, and that is told.
    Told,
    /// It runs, and nothing is said: others act on it, or the API server writes it into every pod.
    Nothing,
}

fn fate(change: impl FnOnce(&mut Value)) -> Fate {
    let mut pod = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
        "spec": { "containers": [{ "name": "main", "image": "i" }] },
    });
    change(&mut pod);
    let pod = serde_json::from_value(pod).unwrap();
    match api_pod(&pod, jiff::Timestamp::UNIX_EPOCH) {
        Ok(manifest) if manifest.unsupported.is_empty() => Fate::Nothing,
        Ok(_) => Fate::Told,
        Err(_) => Fate::Refused,
    }
}

/// The page says the same of each.
#[test]
fn what_is_not_acted_on_is_refused_or_told() {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Fields of pods")).unwrap();
    let written = |field: &str| {
        let row = section.lines().find(|line| line.starts_with(&format!("| `{field}` |"))).unwrap();
        match row.split('|').nth(2).unwrap().trim() {
            "refused" => Fate::Refused,
            "told" => Fate::Told,
            "others act on it" => Fate::Nothing,
            other => panic!("{field}: {other}"),
        }
    };
    let named_object = json!([{ "name": "a" }]);
    for (field, place, value) in [
        ("spec.automountServiceAccountToken", "/spec/automountServiceAccountToken", json!(false)),
        ("spec.preemptionPolicy", "/spec/preemptionPolicy", json!("Never")),
        ("spec.resourceClaims", "/spec/resourceClaims", named_object.clone()),
        ("spec.schedulerName", "/spec/schedulerName", json!("mine")),
        ("spec.schedulingGates", "/spec/schedulingGates", named_object),
        ("spec.serviceAccount", "/spec/serviceAccount", json!("mine")),
        ("spec.securityContext.windowsOptions", "/spec/securityContext", json!({ "windowsOptions": {} })),
        (
            "spec.volumes[].*",
            "/spec/volumes",
            json!([{ "name": "v", "nfs": { "server": "s", "path": "/" } }]),
        ),
    ] {
        let (parent, name) = place.rsplit_once('/').unwrap();
        let found = fate(|pod| pod.pointer_mut(parent).unwrap()[name] = value);
        assert_eq!(found, written(field), "{field}");
    }
}

/// They are counted when it is admitted, which is all that a kubelet without a plugin does.
#[test]
fn resources_of_vendors_are_acted_on() {
    let amounts = json!({ "example.com/dongle": "1" });
    for field in ["limits", "requests"] {
        let resources = json!({ "limits": amounts, (field): amounts });
        let found = fate(|pod| pod["spec"]["containers"][0]["resources"] = resources);
        assert_eq!(found, Fate::Nothing, "{field}");
    }
    assert_eq!(fate(|pod| pod["spec"]["overhead"] = amounts), Fate::Nothing);
}

#[test]
fn every_kind_of_volume_is_acted_on_or_refused() {
    let known =
        "configMap downwardAPI emptyDir ephemeral hostPath image persistentVolumeClaim projected secret";
    let mut names = Vec::new();
    drop(Volume::deserialize(Names(&mut names)));
    assert!(names.len() > 20, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "name" && !known.contains(name)) {
        // Fields without which there is no such volume; each kind passes over those of others.
        let source = json!({ "volumeID": "v", "diskName": "d", "diskURI": "d", "shareName": "s", "secretName": "s", "driver": "d",
            "repository": "r", "pdName": "p", "endpoints": "e", "path": "/", "iqn": "i", "lun": 1, "targetPortal": "t",
            "server": "s", "claimName": "c", "pdID": "p", "volumePath": "v", "gateway": "g", "system": "s", "monitors": [],
            "image": "i", "registry": "r", "volume": "v", "secretRef": { "name": "s" }, "spec": {} });
        let volume = json!([{ "name": "v", (name): source }]);
        assert_eq!(fate(|pod| pod["spec"]["volumes"] = volume), Fate::Refused, "{name}");
    }
}
