//! The objects of the API server that containers are started with. Those that volumes show are in `content`.
//!
//! Source: `VisitPodSecretNames` and `VisitPodConfigmapNames` of `pkg/api/v1/pod/util.go`.

use std::collections::BTreeSet;

use crate::spec::{Container, EnvSource, ObjectKey, ObjectKind, Pod};

/// What the environment of the pod's containers is made of, and what their images are pulled with.
#[must_use]
pub fn started_with(pod: &Pod) -> BTreeSet<ObjectKey> {
    let environment = pod.all_containers().flat_map(|container| of_environment(container));
    let pull_secrets = pod.pull_secrets.iter().map(|name| (ObjectKind::Secret, name));
    let key = |(kind, name): (ObjectKind, &String)| ObjectKey {
        kind,
        namespace: pod.name.namespace.clone(),
        name: name.clone(),
    };
    environment.chain(pull_secrets).map(key).collect()
}

fn of_environment(container: &Container) -> impl Iterator<Item = (ObjectKind, &String)> {
    let keys = container.env.iter().filter_map(|variable| match &variable.source {
        EnvSource::Key(wanted) => Some((wanted.kind, &wanted.name)),
        EnvSource::Value(_) | EnvSource::Field(_) | EnvSource::Resource(_) => None,
    });
    container.env_from.iter().map(|from| (from.kind, &from.name)).chain(keys)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        fixtures,
        spec::{EnvFrom, EnvVar, ObjectKeyRef},
    };

    #[test]
    fn a_pod_is_started_with_what_its_environment_names_and_its_pull_secrets() {
        use ObjectKind::{ConfigMap, Secret};
        let from =
            |kind, name: &str| EnvFrom { prefix: String::new(), kind, name: name.into(), optional: true };
        let variable = |source| EnvVar { name: "X".into(), source };
        let key = |kind, name: &str| {
            let wanted = ObjectKeyRef { kind, name: name.into(), key: "k".into(), optional: false };
            variable(EnvSource::Key(wanted))
        };
        let mut main = fixtures::container("main");
        main.env_from = vec![from(ConfigMap, "m"), from(Secret, "s")];
        main.env = vec![key(Secret, "s"), variable(EnvSource::Value("v".into())), key(ConfigMap, "n")];
        let mut init = fixtures::container("init");
        init.env_from = vec![from(Secret, "i")];
        let pod = Pod {
            init_containers: vec![Arc::new(init)],
            pull_secrets: vec!["p".into(), "s".into()],
            ..fixtures::pod(vec![main])
        };
        let named = started_with(&pod);
        let named: Vec<String> =
            named.iter().map(|key| format!("{} {}/{}", key.kind.as_str(), key.namespace, key.name)).collect();
        let expected =
            ["configmap shop/m", "configmap shop/n", "secret shop/i", "secret shop/p", "secret shop/s"];
        assert_eq!(named, expected);
        assert_eq!(started_with(&fixtures::pod(vec![fixtures::container("main")])), BTreeSet::new());
    }
}
