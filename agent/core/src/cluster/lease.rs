//! The node's Lease: says that it lives. Source: `k8s.io/component-helpers/apimachinery/lease/controller.go`,
//! `pkg/kubelet/util/nodelease.go`.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{child, root};

/// Namespace of the leases of nodes.
pub const NAMESPACE: &str = "kube-node-lease";

/// Part of its duration after which a lease is renewed (`nodeLeaseRenewIntervalFraction`).
const RENEWED_AFTER: f64 = 0.25;

/// Whose lease.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// UID of its Node object.
    pub uid: &'a str,
    /// How long the lease lasts.
    pub seconds: u32,
}

/// How often a lease is renewed.
#[must_use]
pub fn renew_every(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds)).mul_f64(RENEWED_AFTER)
}

/// Whether connections to the API server that are silent are given up after so many renewals in a row that failed, the last of them for
/// want of an answer: a ping would show it too late for the node to be taken for alive. A kubelet closes those that carry nothing then,
/// and with `DISABLE_HTTP2` all (`retryUpdateLease`; `onHeartbeatFailure` of `cmd/kubelet/app/server.go`).
#[must_use]
pub fn is_silence_given_up(failures: u32) -> bool {
    failures > 1
}

/// The lease to be made, or what becomes of the existing one. It goes away with its node.
#[must_use]
pub fn renewed(existing: Option<&Value>, holder: Holder<'_>, now: Timestamp) -> Value {
    let Holder { node, uid, seconds } = holder;
    let mut lease = existing.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": node, "namespace": NAMESPACE },
            "spec": { "holderIdentity": node },
        })
    });
    let whole = root(&mut lease);
    let spec = child(whole, "spec");
    spec.insert("leaseDurationSeconds".to_owned(), json!(seconds));
    spec.insert("renewTime".to_owned(), json!(now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()));
    let metadata = child(whole, "metadata");
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid });
    let owners = metadata.get("ownerReferences").and_then(Value::as_array);
    let is_stale = |owner: &Value| owner["kind"] == "Node" && owner["name"] == node && owner["uid"] != uid;
    if owners.is_none_or(|owners| owners.is_empty() || owners.iter().any(is_stale)) {
        metadata.insert("ownerReferences".to_owned(), json!([owner]));
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Holder<'static> = Holder { node: "n", uid: "u1", seconds: 40 };

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_new_lease_says_all_that_the_kubelets_does() {
        let lease = renewed(None, HOLDER, time("2026-11-23T20:13:09.12345678Z"));
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": "n",
                "namespace": "kube-node-lease",
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1" }],
            },
            "spec": {
                "holderIdentity": "n",
                "leaseDurationSeconds": 40,
                "renewTime": "2026-11-23T20:13:09.123456Z",
            },
        });
        assert_eq!(lease, expected);
    }

    #[test]
    fn renewing_changes_the_time_the_duration_and_a_missing_or_stale_owner() {
        let first = renewed(None, HOLDER, time("2026-11-23T20:13:09Z"));
        let mut kept = first.clone();
        kept["metadata"]["resourceVersion"] = json!("7");
        kept["spec"]["strategy"] = json!("somebody's");
        let next = renewed(Some(&kept), Holder { seconds: 20, ..HOLDER }, time("2026-11-23T19:13:09Z"));
        let mut expected = kept.clone();
        expected["spec"]["leaseDurationSeconds"] = json!(20);
        expected["spec"]["renewTime"] = json!("2026-11-23T19:13:09.000000Z");
        assert_eq!(next, expected);

        for owners in [json!([]), json!([{ "kind": "Node", "name": "n", "uid": "u0" }])] {
            kept["metadata"]["ownerReferences"] = owners;
            let next = renewed(Some(&kept), HOLDER, time("2026-11-23T20:13:09Z"));
            assert_eq!(next["metadata"]["ownerReferences"], first["metadata"]["ownerReferences"]);
        }
        assert_eq!(renew_every(40), Duration::from_secs(10));
    }

    /// Whatever somebody between makes of it, the agent lives.
    #[test]
    fn a_lease_of_any_form_is_renewed() {
        let first = renewed(None, HOLDER, time("2026-11-23T20:13:09Z"));
        let odd = [json!(null), json!(7), json!("x"), json!([1]), json!({})];
        let of = |part: &str, form: Value| {
            let mut lease = first.clone();
            lease[part] = form;
            lease
        };
        let parts = odd.iter().flat_map(|form| ["spec", "metadata"].map(|part| of(part, form.clone())));
        let owners = odd.iter().map(|form| of("metadata", json!({ "ownerReferences": form })));
        for lease in parts.chain(owners).chain(odd.clone()) {
            let next = renewed(Some(&lease), HOLDER, time("2026-11-23T20:13:19Z"));
            assert_eq!(next["spec"]["leaseDurationSeconds"], 40, "{lease}");
            assert_eq!(next["spec"]["renewTime"], "2026-11-23T20:13:19.000000Z", "{lease}");
            let owned = lease.pointer("/metadata/ownerReferences/0").is_some_and(|owner| *owner == 1);
            let owner = if owned { json!(1) } else { first["metadata"]["ownerReferences"][0].clone() };
            assert_eq!(next["metadata"]["ownerReferences"][0], owner, "{lease}");
        }
    }
}
