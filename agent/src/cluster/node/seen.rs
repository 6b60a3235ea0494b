//! What of the Node object counts for pods: whatever others have written on it.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use berth_core::node::{NodeInfo, Taint};
use kube::{
    Api,
    core::{ApiResource, DynamicObject},
};
use serde_json::{Map, Value};

use super::keep::value;
use crate::{
    cluster::{ApiError, Clients, client::within},
    quantity::Quantity,
};

/// How long the API server may take to answer for a pod that waits.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Where the object is.
#[derive(Debug, Clone)]
pub struct NodeObject {
    /// The API server.
    pub clients: Clients,
    /// Name of the node.
    pub name: String,
}

impl NodeObject {
    /// The object as the API server has it, past all that was watched; as soon as the node is bootstrapped.
    ///
    /// # Errors
    /// The API server does not answer, or has no such object.
    pub async fn read(&self) -> Result<NodeInfo, ApiError> {
        self.clients.there_are_some().await;
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
        let nodes: Api<DynamicObject> = Api::all_with(self.clients.get(), &resource);
        let object = within(ANSWER_WITHIN, nodes.get(&self.name)).await?;
        Ok(info(&self.name, &value(&object)?))
    }
}

/// What counts for pods.
pub(super) fn info(name: &str, object: &Value) -> NodeInfo {
    let fields = |pointer| object.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let labels = fields("/metadata/labels").filter_map(|(key, value)| Some((key.clone(), text(value)?)));
    NodeInfo {
        name: name.to_owned(),
        labels: labels.collect(),
        taints: all(object, "/spec/taints").filter_map(executing).collect(),
        extended: extended(fields("/status/allocatable")),
        ips: ips(object),
    }
}

fn executing(taint: &Map<String, Value>) -> Option<Taint> {
    let field = |name: &str| taint.get(name).and_then(text);
    let is_executing = field("effect").is_some_and(|effect| effect == "NoExecute");
    is_executing
        .then(|| Taint { key: field("key").unwrap_or_default(), value: field("value").unwrap_or_default() })
}

/// Resources of vendors and of whoever calls its own Kubernetes' (`kubernetes.io/batch-cpu`), whose amounts are whole.
fn extended<'a>(amounts: impl Iterator<Item = (&'a String, &'a Value)>) -> BTreeMap<String, u64> {
    let of_vendors = amounts.filter(|(name, _)| name.contains('/'));
    let read = |(name, amount): (&String, &Value)| {
        let amount: Quantity = amount.as_str()?.parse().ok()?;
        Some((name.clone(), u64::try_from(amount.units()).ok()?))
    };
    of_vendors.filter_map(read).collect()
}

/// Internal addresses before external ones, one of each family. Source: `GetNodeHostIPs` of `pkg/util/node/node.go`.
fn ips(object: &Value) -> Vec<IpAddr> {
    let of_kind = |kind: &str| -> Vec<IpAddr> {
        let addresses = all(object, "/status/addresses");
        let addresses = addresses.filter(|one| one.get("type").and_then(Value::as_str) == Some(kind));
        addresses.filter_map(|one| one.get("address")?.as_str()?.parse().ok()).collect()
    };
    let known = [of_kind("InternalIP"), of_kind("ExternalIP")].concat();
    let Some(first) = known.first() else { return Vec::new() };
    let second = known.iter().find(|ip| ip.is_ipv6() != first.is_ipv6());
    std::iter::once(first).chain(second).copied().collect()
}

fn all<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Map<String, Value>> {
    let all = object.pointer(pointer).and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_object)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Response, request::Parts};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::cluster::node::fake::clients as server;

    /// Counts what it is asked.
    fn counted(requests: &mut usize, _: &Parts, _: &[u8]) -> Response<Body> {
        *requests += 1;
        let metadata = json!({ "name": "n", "labels": { "zone": "a" } });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        Response::new(Body::from(node.to_string().into_bytes()))
    }

    /// Who has only a bootstrap token may not read nodes, which says nothing of this one.
    #[tokio::test]
    async fn a_node_that_is_not_bootstrapped_asks_nothing_about_itself() {
        let requests = Arc::new(Mutex::new(0));
        let clients = Clients::awaited();
        let object = NodeObject { clients: clients.clone(), name: "n".to_owned() };
        let mut reading = Box::pin(object.read());
        tokio::time::timeout(Duration::from_millis(50), &mut reading).await.unwrap_err();
        clients.replace(server(&requests, counted).get().into());
        assert_eq!(reading.await.unwrap().labels["zone"], "a");
        assert_eq!(*requests.lock().unwrap(), 1);
    }

    #[test]
    fn what_others_wrote_counts() {
        let object = json!({
            "metadata": { "name": "node", "labels": { "kubernetes.io/os": "linux", "zone": "a" } },
            "spec": { "taints": [
                { "key": "down", "value": "yes", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" },
                { "key": "bare", "effect": "NoExecute" },
                { "key": "later", "effect": "NoSchedule" },
            ] },
            "status": {
                "allocatable": { "cpu": "2", "example.com/gpu": "1k", "attachable.kubernetes.io/x": "3" },
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
            },
        });
        let taint = |key: &str, value: &str| Taint { key: key.to_owned(), value: value.to_owned() };
        let labels = [("kubernetes.io/os", "linux"), ("zone", "a")];
        let expected = NodeInfo {
            name: "node".to_owned(),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            taints: vec![taint("down", "yes"), taint("bare", "")],
            extended: [("example.com/gpu", 1000), ("attachable.kubernetes.io/x", 3)]
                .map(|(name, amount)| (name.to_owned(), amount))
                .into(),
            ips: vec![IpAddr::from([192, 0, 2, 1])],
        };
        assert_eq!(info("node", &object), expected);
    }

    #[test]
    fn an_object_that_says_little_is_one() {
        let bare = NodeInfo { name: "node".to_owned(), ..NodeInfo::default() };
        for object in [json!({}), json!({ "spec": { "taints": null }, "status": { "addresses": "none" } })] {
            assert_eq!(info("node", &object), bare);
        }
    }

    #[test]
    fn pods_see_one_address_of_each_family_internal_ones_first() {
        for (addresses, expected) in [
            (&[("Hostname", "node")][..], &[][..]),
            (&[("ExternalIP", "198.51.100.1"), ("InternalIP", "192.0.2.1")], &["192.0.2.1"]),
            (&[("InternalIP", "192.0.2.1"), ("InternalIP", "192.0.2.2")], &["192.0.2.1"]),
            (&[("InternalIP", "2001:db8::1"), ("InternalIP", "192.0.2.1")], &["2001:db8::1", "192.0.2.1"]),
            (&[("ExternalIP", "2001:db8::1"), ("InternalIP", "192.0.2.1")], &["192.0.2.1", "2001:db8::1"]),
        ] {
            let addresses: Vec<Value> =
                addresses.iter().map(|(kind, address)| json!({ "type": kind, "address": address })).collect();
            let found = ips(&json!({ "status": { "addresses": addresses } }));
            let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
            assert_eq!(found, expected, "{addresses:?}");
        }
    }
}
