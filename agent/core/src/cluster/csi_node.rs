//! The node's CSINode: which drivers of CSI the node has. It is made without any, and no node is ready before its own is there.
//!
//! One that is there keeps its drivers: who registers them takes them away. Source: `initializeCSINode` of
//! `pkg/volume/csi/csi_plugin.go`, `pkg/volume/csi/nodeinfomanager/nodeinfomanager.go`.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use super::fields::{child, root};
use crate::time::Mono;

/// Names the plugins of old whose volumes are left to CSI (`MigratedPluginsAnnotationKey`).
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// All of them, in their order (`Init` of `csi_plugin.go`).
const PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// How long a node that was ready stays so without an answer of a server that is there. A kubelet that begins calls none ready before the
/// answer, which comes within a moment.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// How often something other than a Read fails before the node says what (`updateBackoff`).
const TOLD_AFTER: u32 = 4;

/// A Node object.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// How a Node object came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This agent has made it.
    Made,
    /// It was there.
    Found,
}

/// What is asked of the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// Whether there is one.
    Read,
    /// To make this one.
    Make(Value),
    /// To put this one in the place of the one that was read.
    Replace(Value),
    /// To remove the one of this UID.
    Remove(String),
}

/// What has become of the CSINode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CsiNode {
    /// Nobody was asked for one.
    #[default]
    Unasked,
    /// It is not known to be there.
    Asked {
        /// UID of the Node object that it is for.
        owner: String,
        /// Since when, of a server that is not known to be away.
        since: Mono,
        /// Why it could not be had, once that is worth telling.
        fault: Option<String>,
    },
    /// It is there.
    There {
        /// UID of the Node object that it is for.
        owner: String,
    },
}

/// What is asked first. A Node object that was made just now has none, unless one of its name has left it.
#[must_use]
pub fn first(owner: Owner<'_>, origin: Origin) -> Ask {
    match origin {
        Origin::Made => Ask::Make(made(owner)),
        Origin::Found => Ask::Read,
    }
}

/// What is asked after an answer, which may have an object; `None` once all is as it should be. One that another Node object has left is
/// removed (`ensureNodeOwnsCSINode`).
#[must_use]
pub fn next(asked: &Ask, owner: Owner<'_>, found: Option<&Value>) -> Option<Ask> {
    match (asked, found) {
        (Ask::Make(_) | Ask::Replace(_), _) => None,
        (Ask::Read, None) | (Ask::Remove(_), _) => Some(Ask::Make(made(owner))),
        (Ask::Read, Some(found)) if !is_of(found, owner) => {
            let uid = found.pointer("/metadata/uid").and_then(Value::as_str);
            Some(Ask::Remove(uid.unwrap_or_default().to_owned()))
        }
        (Ask::Read, Some(found)) => migrated(found).map(Ask::Replace),
    }
}

/// A request that failed.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    /// Why.
    pub why: &'a str,
    /// Whether nobody can be told anything by that server meanwhile.
    pub is_away: bool,
    /// When.
    pub at: Mono,
}

/// Requests for the CSINode of one Node object, as far as they count later.
#[derive(Debug)]
pub struct Tries {
    since: Mono,
    fault: Option<String>,
    /// Reads that have failed in a row.
    reads: u32,
    /// Everything else that has failed, whatever was read between.
    writes: u32,
}

impl Tries {
    /// None yet.
    #[must_use]
    pub fn new(since: Mono) -> Self {
        Self { since, fault: None, reads: 0, writes: 0 }
    }

    /// Takes a request that was carried out. That it was read does not say that it can be made.
    pub fn succeeded(&mut self, asked: &Ask) {
        if matches!(asked, Ask::Read) {
            self.reads = 0;
        }
    }

    /// Takes a request that failed; how many of its kind have. A server that does not say whether there is one is waited for
    /// (`waitForAPIServerForever`), and nothing is told of that. The time for an answer begins when one that was away can give one: what
    /// is told of the node then does not come before it.
    pub fn failed(&mut self, asked: &Ask, failure: Failure<'_>) -> u32 {
        match asked {
            Ask::Read => {
                if failure.is_away {
                    self.since = failure.at;
                }
                self.reads = self.reads.saturating_add(1);
                self.reads
            }
            Ask::Make(_) | Ask::Replace(_) | Ask::Remove(_) => {
                self.writes = self.writes.saturating_add(1);
                if self.writes >= TOLD_AFTER {
                    self.fault = Some(failure.why.to_owned());
                }
                self.writes
            }
        }
    }

    /// What has become of the CSINode so far. `owner` is the UID of the Node object.
    #[must_use]
    pub fn state(&self, owner: &str) -> CsiNode {
        CsiNode::Asked { owner: owner.to_owned(), since: self.since, fault: self.fault.clone() }
    }
}

impl CsiNode {
    /// Whether it is there for the Node object of this UID.
    #[must_use]
    pub fn is_there(&self, uid: &str) -> bool {
        matches!(self, Self::There { owner } if owner == uid)
    }

    /// Why the Node object of this UID is not ready, and until when an answer may come after which it is.
    pub(super) fn missing(&self, uid: &str) -> Option<(String, Mono)> {
        let (fault, due) = match self {
            Self::There { owner } if owner == uid => return None,
            Self::Asked { owner, since, fault } if owner == uid => (fault.as_ref(), *since + ANSWERED_WITHIN),
            Self::Unasked | Self::Asked { .. } | Self::There { .. } => (None, Mono(Duration::MAX)),
        };
        let why = fault.map_or_else(
            || "CSINode is not yet initialized".to_owned(),
            |why| {
                format!(
                    "failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the \
                     condition; caused by: {why}"
                )
            },
        );
        Some((why, due))
    }

    /// Until when an answer may come.
    pub(super) fn due(&self) -> Option<Mono> {
        match self {
            Self::Asked { since, .. } => Some(*since + ANSWERED_WITHIN),
            Self::Unasked | Self::There { .. } => None,
        }
    }
}

fn made(owner: Owner<'_>) -> Value {
    let Owner { node, uid } = owner;
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {
            "name": node,
            "annotations": { MIGRATED: PLUGINS.join(",") },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }],
        },
        "spec": { "drivers": [] },
    })
}

fn is_of(object: &Value, owner: Owner<'_>) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let is_it = |one: &Value| one["kind"] == "Node" && one["name"] == owner.node && one["uid"] == owner.uid;
    owners.into_iter().flatten().any(is_it)
}

/// The same with what is left to CSI, where it says something else of that.
fn migrated(object: &Value) -> Option<Value> {
    let text = object["metadata"]["annotations"][MIGRATED].as_str().unwrap_or_default();
    let said: BTreeSet<&str> = text.split(',').collect();
    if said == BTreeSet::from(PLUGINS) {
        return None;
    }
    let mut object = object.clone();
    let annotations = child(child(root(&mut object), "metadata"), "annotations");
    annotations.insert(MIGRATED.to_owned(), json!(PLUGINS.join(",")));
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'static> = Owner { node: "n", uid: "u1" };

    /// As the API server has it.
    fn kept(with: impl FnOnce(&mut Value)) -> Value {
        let mut object = made(OWNER);
        object["metadata"]["uid"] = json!("c1");
        object["metadata"]["resourceVersion"] = json!("7");
        object["spec"]["drivers"] = json!([{ "name": "csi.example.com", "nodeID": "x" }]);
        with(&mut object);
        object
    }

    #[test]
    fn a_new_one_says_all_that_the_kubelets_does() {
        let plugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
            kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
        let expected = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {
                "name": "n",
                "annotations": { "storage.alpha.kubernetes.io/migrated-plugins": plugins },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1" }],
            },
            "spec": { "drivers": [] },
        });
        assert_eq!(first(OWNER, Origin::Made), Ask::Make(expected.clone()));
        assert_eq!(first(OWNER, Origin::Found), Ask::Read);
        assert_eq!(next(&Ask::Read, OWNER, None), Some(Ask::Make(expected)));
    }

    #[test]
    fn one_of_the_node_is_kept_and_one_of_another_makes_way() {
        let said = |text: Value| kept(|object| object["metadata"]["annotations"] = json!({ MIGRATED: text }));
        let owned = |owners: Value| kept(|object| object["metadata"]["ownerReferences"] = owners);
        let owner = |kind: &str, name: &str, uid: &str| json!({ "kind": kind, "name": name, "uid": uid });
        let mut reversed = PLUGINS;
        reversed.reverse();
        let replace = || Some(Ask::Replace(kept(|_| ())));
        let remove = || Some(Ask::Remove("c1".to_owned()));
        for (name, found, expected) in [
            ("ours, with drivers", kept(|_| ()), None),
            ("in another order", said(json!(reversed.join(","))), None),
            ("with fewer plugins", said(json!("kubernetes.io/gce-pd")), replace()),
            ("with others", said(json!("example.com/x")), replace()),
            ("without a text", said(json!("")), replace()),
            ("of no form", said(json!(7)), replace()),
            ("of a pod too", owned(json!([owner("Pod", "p", "u0"), owner("Node", "n", "u1")])), None),
            ("of an earlier node", owned(json!([owner("Node", "n", "u0")])), remove()),
            ("of a node of another name", owned(json!([owner("Node", "m", "u1")])), remove()),
            ("of a pod", owned(json!([owner("Pod", "n", "u1")])), remove()),
            ("of nobody", owned(json!(null)), remove()),
        ] {
            assert_eq!(next(&Ask::Read, OWNER, Some(&found)), expected, "{name}");
        }
        assert_eq!(next(&Ask::Remove("c1".to_owned()), OWNER, None), Some(Ask::Make(made(OWNER))));
        for done in [Ask::Make(made(OWNER)), Ask::Replace(made(OWNER))] {
            // A server may make of it what it likes.
            assert_eq!(next(&done, OWNER, Some(&json!({}))), None);
        }
    }

    #[test]
    fn what_keeps_failing_is_told_and_a_server_that_does_not_answer_is_waited_for() {
        // `R` is a Read that is answered; the others fail.
        let ask = |letter: char| match letter {
            'm' => Ask::Make(json!({})),
            'u' => Ask::Replace(json!({})),
            'd' => Ask::Remove("c1".to_owned()),
            _ => Ask::Read,
        };
        for (asked, failures, expected) in [
            ("r", 1, None),
            ("rrrrrrrr", 8, None),
            ("rrrRr", 1, None),
            ("m", 1, None),
            ("mRmRm", 3, None),
            ("mRmRmRm", 4, Some("no")),
            ("uRuRuRu", 4, Some("no")),
            ("mRdRuRrRd", 4, Some("no")),
            ("rrrrrrrrRm", 1, None),
            ("mRmRmRmr", 1, Some("no")),
        ] {
            let mut tries = Tries::new(Mono::default());
            let failure = Failure { why: "no", is_away: false, at: Mono::default() };
            let mut last = 0;
            for letter in asked.chars() {
                if letter == 'R' {
                    tries.succeeded(&Ask::Read);
                } else {
                    last = tries.failed(&ask(letter), failure);
                }
            }
            let CsiNode::Asked { fault, .. } = tries.state("u1") else { panic!("{asked}") };
            assert_eq!((last, fault.as_deref()), (failures, expected), "{asked}");
        }
    }

    #[test]
    fn the_time_for_an_answer_begins_anew_while_the_server_is_away() {
        let (start, at) = (Mono(Duration::from_secs(10)), Mono(Duration::from_secs(99)));
        let make = Ask::Make(json!({}));
        for (asked, is_away, since) in
            [(&Ask::Read, true, at), (&Ask::Read, false, start), (&make, true, start), (&make, false, start)]
        {
            let mut tries = Tries::new(start);
            tries.failed(asked, Failure { why: "no", is_away, at });
            let expected = CsiNode::Asked { owner: "u1".to_owned(), since, fault: None };
            assert_eq!(tries.state("u1"), expected, "{asked:?} {is_away}");
        }
    }

    #[test]
    fn a_node_says_why_it_has_none_until_it_has_its_own() {
        let seconds = |seconds| Mono(Duration::from_secs(seconds));
        let asked = |fault: Option<&str>| CsiNode::Asked {
            owner: "u1".to_owned(),
            since: seconds(10),
            fault: fault.map(str::to_owned),
        };
        let there = CsiNode::There { owner: "u1".to_owned() };
        let (at_first, never) = ("CSINode is not yet initialized", Mono(Duration::MAX));
        let failed = "failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the condition; \
            caused by: no";
        for (state, uid, expected, due) in [
            (CsiNode::default(), "u1", Some((at_first, never)), None),
            (asked(None), "u1", Some((at_first, seconds(40))), Some(seconds(40))),
            (asked(Some("no")), "u1", Some((failed, seconds(40))), Some(seconds(40))),
            (asked(Some("no")), "u2", Some((at_first, never)), Some(seconds(40))),
            (there.clone(), "u1", None, None),
            (there, "u2", Some((at_first, never)), None),
        ] {
            let missing = state.missing(uid);
            let missing = missing.as_ref().map(|(why, due)| (why.as_str(), *due));
            assert_eq!((missing, state.due()), (expected, due), "{state:?} {uid}");
            assert_eq!(state.is_there(uid), expected.is_none(), "{state:?} {uid}");
        }
    }
}
