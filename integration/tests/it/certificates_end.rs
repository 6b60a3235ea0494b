//! Certificates of ten minutes that really end, while the node runs and while its agent is away: `scripts/soak` has them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, AuditEvent, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, system};
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, condition, gone, is_ready, path};
use crate::certificates::{approve_open, requests};
use crate::kit::{FOR_EVER, SOON, shell, task_pid};
use crate::suite::same;

/// From when it is signed until a certificate ends, seconds.
const SIGNED_FOR: u32 = 600;
/// How much earlier than that the signer has it begin (`Backdate` of `pkg/controller/certificates/signer`).
const BACKDATED: SignedDuration = SignedDuration::from_secs(300);
/// How long the node runs: until the first certificates have ended.
const RUNS: Duration = Duration::from_secs(720);
/// Between two looks at what must not change.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest time between two renewals of a lease of 40 s, which is renewed every ten seconds.
const GAP_MAX: SignedDuration = SignedDuration::from_secs(20);
/// From when a certificate is asked for until it is signed, on a busy machine.
const SIGNED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// Clocks are read at different moments.
const AFTER_END: SignedDuration = SignedDuration::from_secs(5);

const CLIENT: &str = "kubelet-client";
const SERVER: &str = "kubelet-server";
const NODE: &str = "/api/v1/nodes/lab";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/lab";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Who asks with the token.
const BY_TOKEN: &str = "system:bootstrap:";

/// A node that has joined by its token, and a pod of it that stays.
struct Joined {
    cluster: Cluster,
    node: Node,
    pki: PathBuf,
    /// The pod's container.
    id: String,
}

impl Joined {
    fn start() -> Result<Self> {
        let root = World::here()?.root().to_owned();
        let settings = cluster::Settings::with_certificates_of(SIGNED_FOR);
        let cluster = Cluster::start(&root.join("cluster"), &settings)?;
        let kubelet = json!({ "rotateCertificates": true, "serverTLSBootstrap": true });
        let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
        let pki = root.join("pki");
        node.agent.set_flags(&[
            format!("--kubeconfig={}", root.join("kubelet.conf").display()),
            format!("--bootstrap-kubeconfig={}", cluster.bootstrap_kubeconfig()?.display()),
            format!("--cert-dir={}", pki.display()),
        ]);
        node.agent.start()?;
        cluster.wait_for(NODE, "ready", is_ready)?;
        wait::until("a certificate of the server", SOON * 2, || {
            let approved = approve_open(&cluster)?;
            let is_there = pki.join(format!("{SERVER}-current.pem")).exists();
            Ok(if is_there { Look::Ready(()) } else { Look::NotYet(format!("{approved} were approved")) })
        })?;
        // However long the node is silent, nobody evicts it.
        let tolerates = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute" });
        let tolerations = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"].map(tolerates);
        let main = shell("main", FOR_EVER, json!({}));
        let spec = json!({ "containers": [main], "tolerations": tolerations });
        cluster.create(PODS, &bound("stays", spec)?)?;
        cluster.wait_for(&path("stays"), "ready", is_ready)?;
        let id = node.ready("stays")?.container_id("main")?.to_owned();
        Ok(Self { cluster, node, pki, id })
    }

    /// The pod runs as it did, and everybody says so.
    fn stays(&self) -> Result<()> {
        let here = self.node.pod("stays")?.context("the pod is gone")?;
        let is_same = here.container_id("main")? == self.id && here.restarts("main") == 0;
        ensure!(is_same && here.phase() == "Running" && here.is_ready(), "{here}");
        let told = self.cluster.get_json(&path("stays"))?;
        ensure!(told["status"]["phase"] == "Running" && is_ready(&told), "{told}");
        Ok(())
    }

    /// Since when the node and its pod are ready.
    fn ready_since(&self) -> Result<[Value; 2]> {
        let since = |at: &str| -> Result<Value> {
            let object = self.cluster.get_json(at)?;
            Ok(condition(&object, "Ready").context("no condition")?["lastTransitionTime"].clone())
        };
        Ok([since(NODE)?, since(&path("stays"))?])
    }

    /// Nothing that was asked for the node was refused, and with its token nothing was asked but certificates.
    fn asked_well(&self) -> Result<Vec<AuditEvent>> {
        let audit = self.cluster.audit()?;
        let refused = cluster::refused(&audit, NODE_NAME);
        ensure!(refused.is_empty(), "refused: {refused:#?}");
        let asks_otherwise = |event: &&AuditEvent| {
            let is_certificate =
                event.object_ref.as_ref().is_some_and(|it| it.resource == "certificatesigningrequests");
            event.user.username.starts_with(BY_TOKEN) && (event.is_refused() || !is_certificate)
        };
        let otherwise: Vec<_> = audit.iter().filter(asks_otherwise).collect();
        ensure!(otherwise.is_empty(), "asked with the token: {otherwise:#?}");
        Ok(audit)
    }

    fn end(self, pods: &[&str]) -> Result<()> {
        for pod in pods {
            self.cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        }
        for pod in pods {
            gone(&self.cluster, pod)?;
        }
        self.node.end()?;
        self.cluster.end()
    }
}

/// A certificate on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    file: PathBuf,
    begins: Timestamp,
    ends: Timestamp,
}

impl Held {
    /// The current one, whose file is for root alone.
    fn current(pki: &Path, kind: &str) -> Result<Self> {
        let link = pki.join(format!("{kind}-current.pem"));
        let file = fs::read_link(&link).with_context(|| format!("follow {}", link.display()))?;
        is_of_root(&file)?;
        let name = file.display().to_string();
        let dates = ["-startdate", "-enddate", "-dateopt", "iso_8601"];
        let said = system("openssl", &[&["x509", "-noout", "-in", name.as_str()], &dates[..]].concat())?;
        let date = |field: &str| -> Result<Timestamp> {
            let date = said.lines().find_map(|line| line.strip_prefix(field));
            Ok(date.with_context(|| format!("no {field} in {said}"))?.parse()?)
        };
        Ok(Self { begins: date("notBefore=")?, ends: date("notAfter=")?, file })
    }
}

fn is_of_root(file: &Path) -> Result<()> {
    let mode = fs::metadata(file)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{} has mode {mode:o}", file.display());
    Ok(())
}

/// All certificates of a kind that were the current one, in order.
#[derive(Debug)]
struct Followed {
    kind: &'static str,
    all: Vec<Held>,
}

impl Followed {
    fn of(kind: &'static str) -> Self {
        Self { kind, all: Vec::new() }
    }

    /// The current one holds.
    fn look(&mut self, pki: &Path) -> Result<()> {
        let now = Timestamp::now();
        let held = Held::current(pki, self.kind)?;
        ensure!(held.begins <= now && now < held.ends, "at {now} the node has {held:?}");
        if self.all.last() != Some(&held) {
            self.all.push(held);
        }
        Ok(())
    }

    /// The first one has ended, and each was replaced after 70 to 90 % of its life.
    fn were_replaced(&self) -> Result<()> {
        let Self { kind, all } = self;
        let first = all.first().with_context(|| format!("no {kind}"))?;
        let now = Timestamp::now();
        ensure!(all.len() > 1 && first.ends < now, "at {now} there were {all:?}");
        for pair in all.windows(2) {
            let life = pair[0].ends.duration_since(pair[0].begins).as_secs_f64();
            let signed = pair[1].begins + BACKDATED;
            let used = signed.duration_since(pair[0].begins).as_secs_f64();
            let most = 0.9 * life + SIGNED_WITHIN.as_secs_f64();
            // Certificates have whole seconds.
            ensure!((0.7 * life - 1.0..=most).contains(&used), "used for {used} s of {life}: {pair:?}");
        }
        Ok(())
    }

    /// The files of all of them and the link, as the kubelet keeps them.
    fn files(&self, pki: &Path) -> impl Iterator<Item = PathBuf> {
        let link = pki.join(format!("{}-current.pem", self.kind));
        self.all.iter().map(|held| held.file.clone()).chain([link])
    }
}

/// Nothing else is there, and all of it is for root alone.
fn are_all_kept(pki: &Path, followed: &mut [Followed; 2]) -> Result<()> {
    let files = wait::until("the files of certificates", SOON, || {
        // Another one may come meanwhile.
        followed.iter_mut().try_for_each(|one| one.look(pki))?;
        let kept: BTreeSet<PathBuf> = followed.iter().flat_map(|one| one.files(pki)).collect();
        let found = BTreeSet::from_iter(files::list(pki)?);
        Ok(if found == kept { Look::Ready(found) } else { Look::NotYet(format!("{found:?}, not {kept:?}")) })
    })?;
    files.iter().try_for_each(|file| is_of_root(file))
}

/// The lease was renewed all the time, and by the first certificate no more once that had ended.
fn is_renewed_without_a_gap(audit: &[AuditEvent], first: &Held) -> Result<()> {
    let renews = |event: &&AuditEvent| {
        event.is_by_node(NODE_NAME) && event.is("update", "leases") && event.code() == 200
    };
    let mut renewals = Vec::new();
    for event in audit.iter().filter(renews) {
        let at: Timestamp = event.stage_timestamp.parse()?;
        renewals.push((at, event.credential().context("nobody knows by which certificate")?));
    }
    let (_, by_first) = *renewals.first().context("the lease was never renewed")?;
    let times = renewals.iter().map(|(at, _)| *at).chain([Timestamp::now()]);
    let times: Vec<Timestamp> = times.collect();
    for pair in times.windows(2) {
        let gap = pair[1].duration_since(pair[0]);
        ensure!(gap <= GAP_MAX, "the lease was not renewed for {gap} from {} on", pair[0]);
    }
    let late = renewals.iter().filter(|(at, by)| *at > first.ends && *by == by_first).count();
    let others = renewals.iter().filter(|(at, by)| *at > first.ends && *by != by_first).count();
    ensure!(late == 0 && others > 0, "{late} renewals by a certificate that had ended, {others} by others");
    Ok(())
}

/// What the agent has logged of certificates that it did not get at once.
fn failures(node: &Node) -> Result<Vec<String>> {
    let said = node.agent.said()?;
    let failed = said.lines().filter(|line| line.contains("certificate") && line.contains("tried again"));
    Ok(failed.map(str::to_owned).collect())
}

/// The node runs until its first certificates have ended.
pub(crate) fn node_runs() -> Result<()> {
    let joined = Joined::start()?;
    let mut followed = [CLIENT, SERVER].map(Followed::of);
    let since = joined.ready_since()?;
    let began = Instant::now();
    while began.elapsed() < RUNS {
        followed.iter_mut().try_for_each(|one| one.look(&joined.pki))?;
        joined.stays()?;
        approve_open(&joined.cluster)?;
        thread::sleep(LOOK_EVERY);
    }
    followed.iter().try_for_each(Followed::were_replaced)?;
    are_all_kept(&joined.pki, &mut followed)?;
    same("failures", failures(&joined.node)?, Vec::new())?;
    is_renewed_without_a_gap(&joined.asked_well()?, &followed[0].all[0])?;
    // What it hears of by watches it still hears of.
    let main = shell("main", FOR_EVER, json!({}));
    joined.cluster.create(PODS, &bound("later", json!({ "containers": [main] }))?)?;
    joined.cluster.wait_for(&path("later"), "ready", is_ready)?;
    joined.stays()?;
    same("ready since", joined.ready_since()?, since)?;
    joined.asked_well()?;
    joined.end(&["stays", "later"])
}

/// Names of the requests for a client certificate that were made with the token, each of which was granted.
fn granted_by_token(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let by_token = |one: &Value| one["spec"]["username"].as_str().unwrap_or_default().starts_with(BY_TOKEN);
    let mut names = BTreeSet::new();
    for one in requests(cluster)?.into_iter().filter(by_token) {
        let is_granted = one["status"]["certificate"].is_string();
        ensure!(is_granted && one["spec"]["signerName"] == CLIENT_SIGNER, "{one}");
        names.insert(one["metadata"]["name"].as_str().context("a name")?.to_owned());
    }
    Ok(names)
}

/// Waits until there is another certificate than one that has ended.
fn another(joined: &Joined, kind: &str, ended: &Held) -> Result<()> {
    let now = wait::until(&format!("another {kind}"), SOON * 2, || {
        approve_open(&joined.cluster)?;
        let now = Held::current(&joined.pki, kind)?;
        Ok(if now.file == ended.file { Look::NotYet(format!("{now:?}")) } else { Look::Ready(now) })
    })?;
    ensure!(now.ends > Timestamp::now(), "{now:?} after {ended:?}");
    ensure!(ended.file.exists(), "{} is not kept", ended.file.display());
    Ok(())
}

/// The agent is away until its certificates have ended, and asks for others by its token when it is back.
pub(crate) fn agent_away() -> Result<()> {
    let mut joined = Joined::start()?;
    let (client, server) = (Held::current(&joined.pki, CLIENT)?, Held::current(&joined.pki, SERVER)?);
    let before = granted_by_token(&joined.cluster)?;
    same("requests by the token", before.len(), 1)?;
    let pid = task_pid(&joined.id)?;
    joined.node.agent.stop()?;
    while Timestamp::now() < client.ends.max(server.ends) + AFTER_END {
        same("the process of the pod", task_pid(&joined.id)?, pid)?;
        thread::sleep(LOOK_EVERY);
    }
    let back = Timestamp::now();
    joined.node.agent.start()?;
    let is_renewed = |lease: &Value| {
        let at = lease["spec"]["renewTime"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        at.is_some_and(|at| at > back)
    };
    joined.cluster.wait_for(LEASE, "renewed", is_renewed)?;
    another(&joined, CLIENT, &client)?;
    another(&joined, SERVER, &server)?;
    // The first request is still there, with a certificate that is of no use to anybody.
    let after = granted_by_token(&joined.cluster)?;
    ensure!(after.len() == 2 && after.is_superset(&before), "before {before:?}, now {after:?}");
    joined.cluster.wait_for(NODE, "ready", is_ready)?;
    joined.cluster.wait_for(&path("stays"), "ready again", is_ready)?;
    joined.node.ready("stays")?;
    joined.stays()?;
    same("the process of the pod", task_pid(&joined.id)?, pid)?;
    same("failures", failures(&joined.node)?, Vec::new())?;
    joined.asked_well()?;
    joined.end(&["stays"])
}
