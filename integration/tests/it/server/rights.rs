//! Who may ask the server of a node what: certificates and tokens that the API server knows, and rights that it gives.

use anyhow::{Result, ensure};
use berth_integration::authority::Use;
use berth_integration::https::Client;
use serde_json::json;

use super::Served;
use crate::suite::same;

/// Fine rights, by which a part of the server is open: `KubeletFineGrainedAuthz`.
const ACCOUNT: &str = "looks-at-metrics";

pub(super) fn all(served: &Served) -> Result<()> {
    let (at, cluster) = (served.address(), &served.cluster);
    let anonymous = Client::new(at, &cluster.ca(), None)?;
    // The kubelet says what there is not before it asks who asks. Berth asks first.
    let absent = anonymous.get("/absent")?.status;
    ensure!(matches!(absent, 401 | 404), "{absent}");
    for path in ["/pods", "/healthz", "/metrics", "/exec/default/target/main?command=true&output=1"] {
        same(path, anonymous.get(path)?.status, 401)?;
    }
    let asks = |name: &str, of: Use| -> Result<Client> {
        Client::new(at, &cluster.ca(), Some(&cluster.authority().sign(name, of)?))
    };
    let nobody = asks("nobody", Use::Client { name: "nobody", group: "" })?;
    let refused = nobody.get("/pods")?;
    same("somebody without rights", refused.status, 403)?;
    ensure!(
        refused.text().starts_with("Forbidden (user=nobody, verb=get, resource=nodes"),
        "{}",
        refused.text()
    );
    let admin = asks("admin", Use::Client { name: "root", group: "system:masters" })?;
    same("an administrator", admin.get("/pods")?.status, 200)?;

    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": ACCOUNT } });
    cluster.create("/api/v1/namespaces/kube-system/serviceaccounts", &account)?;
    let token = anonymous.with_token(&cluster.token_of(ACCOUNT)?);
    same("a token without rights", token.get("/metrics/resource")?.status, 403)?;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": { "name": ACCOUNT },
        "rules": [{ "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] }] });
    cluster.create(&format!("{rbac}/clusterroles"), &role)?;
    let binding = json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system" }] });
    cluster.create(&format!("{rbac}/clusterrolebindings"), &binding)?;
    crate::kit::eventually("the right to count", &200, || Ok(token.get("/metrics/resource")?.status))?;
    for (path, wanted) in
        [("/metrics", 200), ("/metrics/cadvisor", 200), ("/pods", 403), ("/stats/summary", 403)]
    {
        same(path, token.get(path)?.status, wanted)?;
    }
    same("a made-up token", anonymous.with_token("made-up").get("/metrics/resource")?.status, 401)
}
