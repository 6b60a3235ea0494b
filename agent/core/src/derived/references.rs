//! The objects of the API server that containers are started with. Those that volumes show are in `content`.
//!
//! Source: `VisitPodSecretNames` and `VisitPodConfigmapNames` of `pkg/api/v1/pod/util.go`.

use std::collections::BTreeSet;

use crate::spec::{Container, EnvFrom, EnvSource, EnvVar, ObjectKey, ObjectKeyRef, ObjectKind, Pod};

/// An object of the pod's namespace, as the pod names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: &'a str,
    /// Whether it may be missing.
    pub optional: bool,
}

/// What of a container's environment comes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfObject<'a> {
    /// A variable for each of its keys.
    All(&'a EnvFrom),
    /// A variable, by its place in `env`, for one of its keys.
    Key(usize, &'a EnvVar, &'a ObjectKeyRef),
}

impl<'a> OfObject<'a> {
    /// Which object that is.
    #[must_use]
    pub fn object(self) -> Named<'a> {
        match self {
            Self::All(from) => Named { kind: from.kind, name: &from.name, optional: from.optional },
            Self::Key(_, _, wanted) => {
                Named { kind: wanted.kind, name: &wanted.name, optional: wanted.optional }
            }
        }
    }
}

/// What of a container's environment comes of objects: `envFrom`, then `env`, each in its order.
pub fn of_environment(container: &Container) -> impl Iterator<Item = OfObject<'_>> {
    let keys = container.env.iter().enumerate().filter_map(|(index, variable)| match &variable.source {
        EnvSource::Key(wanted) => Some(OfObject::Key(index, variable, wanted)),
        EnvSource::Value(_) | EnvSource::Field(_) | EnvSource::Resource(_) | EnvSource::File(_) => None,
    });
    container.env_from.iter().map(OfObject::All).chain(keys)
}

/// What the environment of the pod's containers is made of, and what their images are pulled with.
#[must_use]
pub fn started_with(pod: &Pod) -> BTreeSet<ObjectKey> {
    let environment = pod.all_containers().flat_map(|container| of_environment(container));
    let environment = environment.map(|from| {
        let Named { kind, name, optional: _ } = from.object();
        pod.object_key(kind, name)
    });
    let pull_secrets = pod.pull_secrets.iter().map(|name| pod.object_key(ObjectKind::Secret, name));
    environment.chain(pull_secrets).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        fixtures,
        spec::ObjectKind::{ConfigMap, Secret},
    };

    fn from(kind: ObjectKind, name: &str, optional: bool) -> EnvFrom {
        EnvFrom { prefix: String::new(), kind, name: name.into(), optional }
    }

    fn variable(source: EnvSource) -> EnvVar {
        EnvVar { name: "X".into(), source }
    }

    fn key(kind: ObjectKind, name: &str, optional: bool) -> EnvVar {
        variable(EnvSource::Key(ObjectKeyRef { kind, name: name.into(), key: "k".into(), optional }))
    }

    #[test]
    fn an_environment_names_objects_in_its_order() {
        let (value, field) = (EnvSource::Value("v".into()), EnvSource::Field("metadata.name".into()));
        for (env_from, env, expected) in [
            (
                vec![from(Secret, "s", false), from(ConfigMap, "m", true), from(Secret, "s", true)],
                vec![],
                &[(None, Secret, "s", false), (None, ConfigMap, "m", true), (None, Secret, "s", true)][..],
            ),
            (vec![], vec![variable(value.clone()), variable(field)], &[]),
            (
                vec![from(ConfigMap, "m", false)],
                vec![key(Secret, "s", true), variable(value), key(ConfigMap, "n", false)],
                &[
                    (None, ConfigMap, "m", false),
                    (Some(0), Secret, "s", true),
                    (Some(2), ConfigMap, "n", false),
                ],
            ),
        ] {
            let container = Container { env_from, env, ..fixtures::container("main") };
            let all: Vec<(Option<usize>, ObjectKind, &str, bool)> = of_environment(&container)
                .map(|from| {
                    let place = match from {
                        OfObject::All(_) => None,
                        OfObject::Key(index, variable, _) => {
                            assert_eq!(variable, &container.env[index]);
                            Some(index)
                        }
                    };
                    let Named { kind, name, optional } = from.object();
                    (place, kind, name, optional)
                })
                .collect();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_pod_is_started_with_what_its_environment_names_and_its_pull_secrets() {
        let mut main = fixtures::container("main");
        main.env_from = vec![from(ConfigMap, "m", true), from(Secret, "s", true)];
        main.env =
            vec![key(Secret, "s", false), variable(EnvSource::Value("v".into())), key(ConfigMap, "n", false)];
        let mut init = fixtures::container("init");
        init.env_from = vec![from(Secret, "i", true)];
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
