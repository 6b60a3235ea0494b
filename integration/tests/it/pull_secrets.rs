//! Images that a registry gives to those alone who have an account.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, ROOT_DIR, STATE_DIR, Settings};
use berth_integration::cluster::{self, Cluster};
use berth_integration::containerd::{ctr, ctr_rows};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::registry::ACCOUNT;
use serde_json::{Value, json};

use crate::api_away::followed;
use crate::canary::Canary;
use crate::crash::dies_at_once;
use crate::images::of_image;
use crate::kit::{eventually, go_on, wait_at};
use crate::registries::{GUARDED, certificate};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("pull_secrets::an_image_is_for_pods_that_could_have_pulled_it", of_whom),
        test("pull_secrets::accounts_of_the_node_pull_for_all_its_pods", of_the_node),
    ]
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// That of the account, and another one.
const PASSWORDS: [&str; 2] = [ACCOUNT.1, "parrots-of-eight"];

fn path(pod: &str) -> String {
    format!("{PODS}/{pod}")
}

fn image() -> String {
    format!("localhost:{GUARDED}/busybox:1")
}

/// A pod that waits at a door in the private image, and has secrets.
fn pod(name: &str, secrets: &[&str]) -> Value {
    pod_of(name, &image(), secrets)
}

fn pod_of(name: &str, image: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
    let main = json!({
        "name": "main", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", format!("{}; exit 1", wait_at("door"))],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": {
        "nodeName": NODE_NAME, "terminationGracePeriodSeconds": 1, "imagePullSecrets": secrets, "containers": [main],
    } })
}

fn secret(name: &str, password: &str) -> Value {
    secret_of(name, &format!("localhost:{GUARDED}"), password)
}

fn secret_of(name: &str, registry: &str, password: &str) -> Value {
    let auths = json!({ "auths": {
        registry: { "username": ACCOUNT.0, "password": password },
    } });
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": auths.to_string() },
    })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn is_refused(pod: &Value) -> bool {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let reason = waiting["reason"].as_str().unwrap_or_default();
    ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
        && waiting["message"].as_str().is_some_and(|message| message.contains("401 Unauthorized"))
}

/// Waits for a pod whose one secret has no accounts: what is wrong with it is the reason that its container waits for.
fn is_refused_for_its_secret(cluster: &Cluster) -> Result<()> {
    let broken = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "broken" },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": "{\"auths\":[]}" },
    });
    cluster.create("/api/v1/namespaces/default/secrets", &broken)?;
    cluster.create(PODS, &pod("broken", &["broken"]))?;
    let why = "json: cannot unmarshal array into Go struct field DockerConfigJSON.auths of type \
               credentialprovider.DockerConfig";
    cluster.wait_for(&path("broken"), "refused for its secret", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == why && waiting["message"] == why
    })?;
    eventually("why", &true, || Ok(told(cluster, "broken", "Failed")?.contains(&format!("Error: {why}"))))
}

/// Messages of the events of a pod with this reason.
fn told(cluster: &Cluster, pod: &str, reason: &str) -> Result<Vec<String>> {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={pod}");
    let events = cluster.get_json(&path)?;
    let events = events["items"].as_array().into_iter().flatten().filter(|event| event["reason"] == reason);
    Ok(events.filter_map(|event| Some(event["message"].as_str()?.to_owned())).collect())
}

/// Records of images that were pulled.
fn records() -> Result<Vec<String>> {
    let dir = Path::new(ROOT_DIR).join("image_manager/pulled");
    // One may go between the two looks.
    files::list(dir)?.iter().filter_map(|path| files::read_if_there(path).transpose()).collect()
}

/// The account of a registry is told to the host that `hosts.toml` names in its place.
fn by_alias(cluster: &Cluster, node: &Node, trusted: &str) -> Result<()> {
    const ALIAS: &str = "alias.test";
    node.containerd.add_registry_with(ALIAS, &format!("https://localhost:{GUARDED}"), trusted)?;
    cluster.create(SECRETS, &secret_of(ALIAS, ALIAS, ACCOUNT.1))?;
    let image = format!("{ALIAS}/busybox:1");
    cluster.create(PODS, &pod_of("alias", &image, &[ALIAS]))?;
    cluster.wait_for(&path("alias"), "ready", is_ready)?;
    cluster.request("DELETE", &path("alias"), "application/json", &json!({}))?;
    eventually("the alias to be gone", &None, || cluster.find_json(&path("alias")))?;
    let names = ctr(&["images", "list", "--quiet"])?;
    for name in names.lines().filter(|name| name.starts_with(ALIAS)) {
        ctr(&["images", "remove", name])?;
    }
    Ok(())
}

/// An agent dies when a private image has come and nothing is written down yet of what it was pulled with: the next one gives it to nobody
/// by that.
fn cut_off(cluster: &Cluster, node: &mut Node) -> Result<()> {
    cluster.create(PODS, &pod("cut-off", &["account"]))?;
    dies_at_once(node, "pull.transferred", POD_LIMIT)?;
    let now = json!({ "gracePeriodSeconds": 0 });
    cluster.request("DELETE", &path("cut-off"), "application/json", &now)?;
    cluster.wait_gone(&path("cut-off"))?;
    let names = ctr(&["images", "list", "--quiet"])?;
    ensure!(names.lines().any(|name| name == image()), "the image has not come: {names}");
    cluster.create(PODS, &pod("early", &[]))?;
    // By its id it is the same image.
    let id = id_of(&image())?;
    cluster.create(PODS, &never("early-id", &id, &[]))?;
    node.agent.start()?;
    cluster.wait_for(&path("early"), "refused by the registry", is_refused)?;
    cluster.wait_for(&path("early-id"), "refused", is_not_there)?;
    for pod in ["early", "early-id"] {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        cluster.wait_gone(&path(pod))?;
    }
    Ok(())
}

/// The id of an image, by what the node has of it.
fn id_of(image: &str) -> Result<String> {
    let rows = ctr_rows(&["images", "list"])?;
    let row = rows.iter().find(|row| row[0] == image).context("no such image")?;
    let manifest: Value = serde_json::from_str(&ctr(&["content", "get", &row[2]])?)?;
    Ok(manifest["config"]["digest"].as_str().context("no config")?.to_owned())
}

fn never(name: &str, image: &str, secrets: &[&str]) -> Value {
    let mut pod = pod_of(name, image, secrets);
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    pod
}

fn is_not_there(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
}

/// By its id it was pulled by nobody, and by its digest as by its tag.
fn by_other_names(cluster: &Cluster, id: &str) -> Result<()> {
    for (name, secrets) in [("id-bare", &[][..]), ("id-account", &["account"])] {
        cluster.create(PODS, &never(name, id, secrets))?;
        cluster.wait_for(&path(name), "refused", is_not_there)?;
    }
    let names = ctr(&["images", "list", "--quiet"])?;
    let is_digest = |name: &&str| name.starts_with(&format!("localhost:{GUARDED}/busybox@"));
    let digest = names.lines().find(is_digest).context("no digest")?;
    cluster.create(PODS, &never("digest-bare", digest, &[]))?;
    cluster.create(PODS, &never("digest-account", digest, &["account"]))?;
    cluster.wait_for(&path("digest-bare"), "refused", is_not_there)?;
    cluster.wait_for(&path("digest-account"), "ready", is_ready)?;
    for name in ["id-bare", "id-account", "digest-bare", "digest-account"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        cluster.wait_gone(&path(name))?;
    }
    Ok(())
}

/// A container of an earlier agent ends while the API server is away. Its image is on the node, for pods that have the secret.
fn without_the_server(cluster: &mut Cluster, node: &mut Node) -> Result<()> {
    let before = followed(cluster, "account")?;
    node.agent.kill()?;
    node.agent.start()?;
    eventually("the secret to be followed", &true, || Ok(followed(cluster, "account")? > before))?;
    let has = node.ready("has")?;
    // The agent has heard of services, which each start of a container needs, and of what it asked for before.
    cluster.create(PODS, &pod("later", &["account"]))?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    cluster.kill_api_server()?;
    go_on(&has, "main", "door")?;
    node.wait("has", "restarted", POD_LIMIT, |pod| pod.restarts("main") == 1 && pod.is_ready())?;
    cluster.start_api_server()?;
    let is_told = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1 && is_ready(pod);
    cluster.wait_for(&path("has"), "told of its restart", is_told).map(drop)
}

/// A pod whose secret is another one with the same account has the image, and is known to from then on.
fn has_another(cluster: &Cluster) -> Result<()> {
    cluster.create(PODS, &pod("same", &["none", "same"]))?;
    cluster.wait_for(&path("same"), "ready", is_ready)?;
    eventually("the secret that fits to be kept", &true, || {
        Ok(records()?.iter().any(|record| record.contains("\"same\"") && record.contains("\"account\"")))
    })?;
    eventually("what it found", &1, || Ok(told(cluster, "same", "Pulled")?.len()))?;
    let pulled = told(cluster, "same", "Pulled")?;
    ensure!(pulled[0].contains("already present on machine and can be accessed by the pod"), "{pulled:?}");
    Ok(())
}

/// By a file, and by a program that is asked for them.
fn of_the_node() -> Result<()> {
    let host = format!("localhost:{GUARDED}");
    let auth = json!({ &host: { "username": ACCOUNT.0, "password": ACCOUNT.1 } });
    let dir = World::here()?.root().join("accounts");
    fs::create_dir(&dir)?;
    let config = dir.join("providers.json");
    let providers = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "accounts", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": [&host], "defaultCacheDuration": "0s",
        }],
    });
    files::write(&config, providers.to_string())?;
    let answer = json!({
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry", "auth": &auth,
    });
    let by_program = vec![
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", dir.display()),
    ];
    let file = Path::new(ROOT_DIR).join("config.json");
    let mut node = Node::prepare(&Settings::with_registry())?;
    let (ca, key) = certificate(node.world.root(), "ours")?;
    let registry = node.registry.as_ref().context("registry")?.guarded(GUARDED, &ca, &key)?;
    let trusted = format!("ca = \"{}\"\n", ca.display());
    node.containerd.add_registry_with(&host, &format!("https://{host}"), &trusted)?;
    node.agent.start()?;
    let web = of_image("web", &image(), "Always", json!({}));
    node.apply("web", &web)?;
    let is_refused = |pod: &PodState| pod.to_string().contains("401 Unauthorized");
    node.wait("web", "refused", POD_LIMIT, is_refused)?;
    node.remove("web")?;
    node.gone("web")?;

    files::write(&file, json!({ "auths": &auth }).to_string())?;
    let has_come = |node: &Node| -> Result<()> {
        node.apply("web", &web)?;
        node.ready("web")?;
        let everybody = |record: &String| record.contains("\"nodePodsAccessible\":true");
        same("records for all pods of the node", records()?.iter().filter(|one| everybody(one)).count(), 1)?;
        node.remove("web")?;
        node.gone("web")
    };
    has_come(&node)?;
    files::remove(&file)?;
    files::write_program(dir.join("accounts"), &format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n"))?;
    node.agent.kill()?;
    node.set_agent(&Settings { flags: by_program, ..Settings::with_registry() })?;
    node.agent.start()?;
    has_come(&node)?;
    registry.stop()?;
    node.end()
}

fn of_whom() -> Result<()> {
    let mut cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let kubeconfig = format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display());
    let flags = vec![kubeconfig, "--v=10".to_owned()];
    let mut node = Node::prepare(&Settings { flags, ..Settings::with_registry() })?;
    let (ca, key) = certificate(node.world.root(), "ours")?;
    let registry = node.registry.as_ref().context("registry")?.guarded(GUARDED, &ca, &key)?;
    let url = format!("https://localhost:{GUARDED}");
    let trusted = format!("ca = \"{}\"\n", ca.display());
    node.containerd.add_registry_with(&format!("localhost:{GUARDED}"), &url, &trusted)?;
    let [right, wrong] = PASSWORDS;
    for (name, password) in [("account", right), ("same", right), ("wrong", wrong)] {
        cluster.create(SECRETS, &secret(name, password))?;
    }
    cut_off(&cluster, &mut node)?;

    // Each that fits is tried, until one works.
    cluster.create(PODS, &pod("has", &["wrong", "account"]))?;
    cluster.wait_for(&path("has"), "ready", is_ready)?;
    let record = records()?.into_iter().find(|record| record.contains(&format!("localhost:{GUARDED}")));
    let record = record.context("no record of the pull")?;
    ensure!(
        record.contains("\"account\"") && !record.contains("\"wrong\"") && !record.contains(ACCOUNT.1),
        "{record}"
    );
    by_alias(&cluster, &node, &trusted)?;
    without_the_server(&mut cluster, &mut node)?;

    // The image is on the node by now.
    for (name, secrets) in [("bare", &[][..]), ("wrong", &["wrong"]), ("missing", &["none"])] {
        cluster.create(PODS, &pod(name, secrets))?;
    }
    has_another(&cluster)?;
    let id = serde_json::from_str::<Value>(&record)?["imageRef"].as_str().context("no id")?.to_owned();
    by_other_names(&cluster, &id)?;
    let reason = "FailedToRetrieveImagePullSecret";
    let message =
        "Unable to retrieve some image pull secrets (none); attempting to pull the image may not succeed.";
    for name in ["same", "missing"] {
        let first = || Ok(told(&cluster, name, reason)?.into_iter().next());
        eventually("what is missing", &Some(message.to_owned()), first)?;
    }
    for name in ["bare", "wrong", "missing"] {
        cluster.wait_for(&path(name), "refused by the registry", is_refused)?;
    }
    same("what others miss", told(&cluster, "wrong", reason)?.len(), 0)?;
    is_refused_for_its_secret(&cluster)?;

    let canaries = PASSWORDS.map(Canary::of).into_iter().collect::<Result<Vec<_>>>()?;
    let agent = node.agent.pid().context("no agent")?;
    for canary in &canaries {
        for dir in [Path::new(STATE_DIR), &Path::new(ROOT_DIR).join("image_manager")] {
            same("files that tell a password", canary.files(dir, |_| false)?, Vec::new())?;
        }
        same("processes that tell a password", canary.processes(agent)?, Vec::new())?;
    }
    for name in ["has", "same", "bare", "wrong", "missing", "broken", "later"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        cluster.wait_gone(&path(name))?;
    }
    // With the image goes what was kept of its pull.
    let names = ctr(&["images", "list", "--quiet"])?;
    let of_image = |name: &&str| name.contains(&format!("localhost:{GUARDED}")) || **name == *id;
    for name in names.lines().filter(of_image) {
        ctr(&["images", "remove", name])?;
    }
    eventually("the record to go", &false, || Ok(records()?.iter().any(|record| record.contains(&id))))?;

    let log = fs::read(node.agent.log())?;
    ensure!(log.windows(5).any(|word| word == b"DEBUG"), "the log does not tell everything");
    ensure!(!canaries.iter().any(|canary| canary.is_in(&log)), "the log tells a password");
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE_NAME);
    ensure!(refused.is_empty(), "the node was refused: {refused:#?}");
    registry.stop()?;
    node.end()?;
    cluster.end()
}
