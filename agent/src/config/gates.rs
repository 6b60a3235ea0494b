//! Feature gates, as kubelet 1.36 knows them. Source: `pkg/features/kube_features.go`, those of `k8s.io/apiserver`,
//! `k8s.io/component-base` and `k8s.io/client-go`; what refuses them is `k8s.io/component-base/featuregate/feature_gate.go`.

use super::{
    kubelet::{GATES, KubeletConfiguration},
    settings::FeatureGate,
};
use crate::document::suggestion;

/// One gate a line: name, stage, whether it is on by default, and whether it stays so.
const ALL: &str = include_str!("gates.txt");

/// A gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gate {
    name: &'static str,
    stage: &'static str,
    is_on: bool,
    is_locked: bool,
}

fn all() -> impl Iterator<Item = Gate> {
    ALL.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, stage) = (words.next()?, words.next()?);
        Some(Gate {
            name,
            stage,
            is_on: words.next() == Some("on"),
            is_locked: words.next() == Some("locked"),
        })
    })
}

fn find(name: &str) -> Option<Gate> {
    all().find(|gate| gate.name == name)
}

/// Why a gate cannot be set so.
pub(super) fn refused(name: &str, is_on: bool) -> Option<String> {
    match find(name) {
        None => {
            let known: Vec<&str> = all().map(|gate| gate.name).collect();
            let hint =
                suggestion(name, &known).map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
            Some(format!("`{name}` is not a feature gate of Kubernetes 1.36{hint}"))
        }
        Some(gate) if gate.is_locked && gate.is_on != is_on => {
            Some(format!("`{name}` is locked to {}", gate.is_on))
        }
        Some(_) => None,
    }
}

/// Whether setting a gate so asks for nothing beyond what is there without.
pub(super) fn is_default(name: &str, is_on: bool) -> bool {
    find(name).is_some_and(|gate| gate.is_on == is_on)
}

/// Gates that this version acts on, as a configuration has them. Source: `AddMetrics` of
/// `k8s.io/component-base/featuregate/feature_gate.go`.
pub(super) fn acted_on(kubelet: &KubeletConfiguration) -> Vec<FeatureGate> {
    let acted_on = |gate: &Gate| GATES.contains(&gate.name);
    let of = |gate: Gate| FeatureGate {
        name: gate.name,
        stage: stage(gate.stage),
        is_on: kubelet.has_gate(gate.name),
    };
    all().filter(acted_on).map(of).collect()
}

fn stage(word: &str) -> &'static str {
    match word {
        "alpha" => "ALPHA",
        "beta" => "BETA",
        "deprecated" => "DEPRECATED",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_that_are_acted_on_are_told_as_they_are_set() {
        let with = |gates: &[(&str, bool)]| {
            let gates = gates.iter().map(|(name, is_on)| ((*name).to_owned(), *is_on)).collect();
            let kubelet =
                KubeletConfiguration { feature_gates: Some(gates), ..KubeletConfiguration::default() };
            acted_on(&kubelet).into_iter().map(|gate| (gate.name, gate.stage, gate.is_on)).collect::<Vec<_>>()
        };
        let expected =
            |qos, split| vec![("MemoryQoS", "ALPHA", qos), ("PodLogsQuerySplitStreams", "ALPHA", split)];
        assert_eq!(with(&[]), expected(false, false));
        assert_eq!(with(&[("MemoryQoS", true), ("EventedPLEG", true)]), expected(true, false));
        assert_eq!(with(&[("AllAlpha", true), ("MemoryQoS", false)]), expected(false, true));
    }

    #[test]
    fn gates_are_refused_as_the_kubelet_refuses_them() {
        for (name, is_on, why) in [
            ("MemoryQoS", true, None),
            ("MemoryQoS", false, None),
            ("AllAlpha", true, None),
            ("AllBeta", true, None),
            ("RotateKubeletServerCertificate", false, None),
            ("ImageVolume", true, None),
            ("SidecarContainers", true, None),
            ("SidecarContainers", false, Some("`SidecarContainers` is locked to true")),
            ("KubeletCgroupDriverFromCRI", true, None),
            (
                "MemoryQos",
                true,
                Some("`MemoryQos` is not a feature gate of Kubernetes 1.36, did you mean `MemoryQoS`?"),
            ),
            ("Nothing", true, Some("`Nothing` is not a feature gate of Kubernetes 1.36")),
        ] {
            assert_eq!(refused(name, is_on).as_deref(), why, "{name}={is_on}");
        }
    }

    #[test]
    fn the_table_has_each_gate_once() {
        let names: Vec<_> = all().map(|gate| gate.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!((names.len(), &names), (242, &sorted));
        assert!(is_default("MemoryQoS", false) && !is_default("MemoryQoS", true) && !is_default("x", false));
    }
}
