//! The server of a node, asked by those who ask it: `kubectl` through a real API server, metrics-server, whoever has a certificate, and
//! whoever means ill.
//!
//! The tests themselves are proven on the kubelet: with `BERTH_TEST_SERVER_OF=kubelet` the pods are on a node of the real one beside
//! Berth's, and its server is asked.

mod alone;
mod attach;
mod copy;
mod debug;
mod exec;
mod forward;
mod kubectl;
mod logs;
mod metrics;
mod raw;
mod rights;
mod statistics;
mod stress;
mod values;

use std::env;
use std::fs::File;
use std::io::{Read, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, Cluster};
use berth_integration::files;
use berth_integration::http::Answer;
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::Node;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

pub(crate) use self::stress::ten_gigabytes;
use crate::api_pods::{is_ready, path};
use crate::kit::{measured, pod, spent, with};
use crate::suite::{LONG_LIMIT, Test, test};

/// Names whose server is asked, when it is not Berth's.
const SERVER_OF: &str = "BERTH_TEST_SERVER_OF";
/// How much goes through copies and forwarded ports, MiB.
const MEBIBYTES: &str = "BERTH_TEST_TRANSFER_MIB";
/// The same where nobody says otherwise.
const FEW_MEBIBYTES: u64 = 64;
/// The port of a node's server where nobody says otherwise.
const PORT: u16 = 10_250;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("server::kubectl_in_all_its_forms", kubectl::all).long().within(limit_of_transfers()),
        test("server::who_is_let_in_without_a_control_plane", alone::all),
        test("server::metrics_server_and_an_autoscaler", metrics::all).long().within(LONG_LIMIT),
        test("server::streams_without_end_and_clients_that_mean_ill", stress::all)
            .long()
            .alone()
            .within(LONG_LIMIT),
        test("statistics::are_what_the_files_of_cgroups_say", statistics::all),
        test("statistics::cve_2020_8557_what_is_written_into_the_hosts_file_counts", statistics::hosts),
        test("as_kubelet::values_are_its", values::all).long().within(LONG_LIMIT),
    ]
}

/// Whether the server of the real kubelet is asked.
fn is_of_kubelet() -> bool {
    env::var(SERVER_OF).is_ok_and(|of| of == "kubelet")
}

/// For much it may take as long as for a gigabyte.
fn limit_of_transfers() -> Duration {
    if env::var_os(MEBIBYTES).is_some() { 3 * LONG_LIMIT } else { LONG_LIMIT }
}

/// How much a transfer has, in bytes.
fn transfer() -> Result<u64> {
    let mebibytes = match env::var(MEBIBYTES) {
        Ok(said) => said.parse().with_context(|| format!("{MEBIBYTES} is {said:?}"))?,
        Err(_unset) => FEW_MEBIBYTES,
    };
    Ok(mebibytes << 20)
}

/// A cluster whose API server asks a node, and that node.
struct Served {
    cluster: Cluster,
    node: Node,
    kubelet: Option<Kubelet>,
}

impl Served {
    /// Starts it, with fields of `KubeletConfiguration`, and waits until the node is ready.
    fn start(settings: &cluster::Settings, configuration: &Value) -> Result<Self> {
        Self::start_beside(settings, configuration, is_of_kubelet())
    }

    /// The same beside the real kubelet.
    fn start_beside(
        settings: &cluster::Settings,
        configuration: &Value,
        beside_kubelet: bool,
    ) -> Result<Self> {
        let cluster = Cluster::start(&World::here()?.root().join("cluster"), settings)?;
        cluster.let_it_ask_nodes()?;
        let address = IpAddr::from(cluster::ADDRESS);
        let configuration_of = |name: &str| {
            Ok::<_, anyhow::Error>(with(cluster.server_of_node(name, address)?, configuration.clone()))
        };
        let flags = |name: &str| vec![format!("--node-ip={address}"), format!("--node-labels=name={name}")];
        let mut ours = flags(NODE_NAME);
        ours.push(format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display()));
        let node = Node::start_with(&Settings {
            kubelet: configuration_of(NODE_NAME)?,
            flags: ours,
            // Its containerd has no images yet.
            ..if beside_kubelet { Settings::with_registry() } else { Settings::default() }
        })?;
        let kubelet = if beside_kubelet {
            let name = kubelet::NODE_NAME;
            let settings = kubelet::Settings {
                kubeconfig: Some(cluster.node_kubeconfig(name)?),
                kubelet: configuration_of(name)?,
                flags: flags(name),
                ..kubelet::Settings::default()
            };
            Some(Kubelet::start(&node, settings)?)
        } else {
            None
        };
        let served = Self { cluster, node, kubelet };
        let path = format!("/api/v1/nodes/{}", served.name());
        served.cluster.wait_for(&path, "ready", is_ready)?;
        Ok(served)
    }

    /// The name of the node.
    fn name(&self) -> &'static str {
        if self.kubelet.is_some() { kubelet::NODE_NAME } else { NODE_NAME }
    }

    /// Where its server listens.
    fn address(&self) -> SocketAddr {
        let port = if self.kubelet.is_some() { kubelet::PORT } else { PORT };
        (cluster::ADDRESS, port).into()
    }

    /// The directory of its pods' logs.
    fn logs(&self) -> PathBuf {
        PathBuf::from(if self.kubelet.is_some() { kubelet::LOGS } else { "/var/log/pods" })
    }

    /// A pod that is bound to the node.
    fn create(&self, name: &str, spec: Value) -> Result<()> {
        self.create_on(self.name(), name, spec)
    }

    /// The same that is bound to a node.
    fn create_on(&self, node: &str, name: &str, spec: Value) -> Result<()> {
        let spec = with(json!({ "nodeName": node, "terminationGracePeriodSeconds": 1 }), spec);
        let mut object: Value = serde_json::from_str(&pod(name, spec))?;
        object["metadata"]["labels"] = json!({ "app": name });
        self.cluster.create(crate::api_pods::PODS, &object).map(drop)
    }

    /// Waits until a pod is Ready.
    fn ready(&self, name: &str) -> Result<Value> {
        self.cluster.wait_for(&path(name), "Ready", is_ready)
    }

    /// What a path of the node's server answers through the API server, whatever its code.
    fn asked(&self, path: &str) -> Result<Answer> {
        self.asked_of(self.name(), path)
    }

    /// The same of a node.
    fn asked_of(&self, node: &str, path: &str) -> Result<Answer> {
        self.cluster.get(&format!("/api/v1/nodes/{node}/proxy/{path}"))
    }

    /// Ends it; nothing is left of its pods.
    fn end(self) -> Result<()> {
        let gone = ["delete", "pods", "--all", "--grace-period=1", "--wait=true", "--timeout=90s"];
        self.cluster.kubectl(&gone)?;
        if let Some(kubelet) = self.kubelet {
            kubelet.end(&self.node)?;
        }
        self.node.end()?;
        self.cluster.end()
    }
}

/// Parts of a test that share a lab. All are tried, and each that fails is told.
struct Parts<'a> {
    served: &'a Served,
    failed: Vec<String>,
}

impl<'a> Parts<'a> {
    fn of(served: &'a Served) -> Self {
        Self { served, failed: Vec::new() }
    }

    fn part(&mut self, name: &str, body: impl FnOnce(&Served) -> Result<()>) {
        let began = Instant::now();
        if let Err(failure) = body(self.served) {
            let failed = format!("{name}: {failure:#}");
            measured(&format!("FAILED {failed}"));
            self.failed.push(failed);
        }
        spent(name, began);
    }

    fn done(self) -> Result<()> {
        let failed = self.failed;
        ensure!(failed.is_empty(), "{} parts failed:\n{}", failed.len(), failed.join("\n\n"));
        Ok(())
    }
}

/// A pipe that containers wait at and the test writes to. It is a file of the machine: nothing is asked of the node to go on.
struct Door {
    file: File,
}

/// Where doors are, and where containers have them.
const DOORS: &str = "/run/doors";

impl Door {
    /// Makes one. A container that has [`doors`] waits at it with `read _ </run/doors/NAME`.
    fn make(name: &str) -> Result<()> {
        files::make_dir(DOORS)?;
        let path = PathBuf::from(DOORS).join(name);
        mkfifo(&path, Mode::S_IRWXU).with_context(|| format!("make {}", path.display()))
    }

    /// One that was made.
    fn at(name: &str) -> Result<Self> {
        // For both, so that neither side waits for the other to open it.
        let file = File::options().read(true).write(true).open(PathBuf::from(DOORS).join(name));
        Ok(Self { file: file.with_context(|| format!("open door {name}"))? })
    }

    /// Lets one that waits go on, or the next that will.
    fn open(&mut self) -> Result<()> {
        self.file.write_all(b"\n").context("let who waits at a door go on")
    }
}

/// A pod's volume of all doors.
fn doors() -> Value {
    json!([{ "name": "doors", "hostPath": { "path": DOORS } }])
}

/// Where a container has it.
fn at_doors() -> Value {
    json!([{ "name": "doors", "mountPath": DOORS }])
}

/// What is read of a process until it says something; the rest is left. Whoever says nothing for long is not waited for.
fn read_until(from: &mut (impl Read + AsFd), text: &str) -> Result<String> {
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let so_far = String::from_utf8_lossy(&said).into_owned();
        if so_far.contains(text) {
            return Ok(so_far);
        }
        let tail = &so_far[so_far.ceil_char_boundary(so_far.len().saturating_sub(SHOWN))..];
        let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::try_from(KUBECTL_LIMIT)?).context("wait for words")?;
        ensure!(ready > 0, "no {text:?} in {KUBECTL_LIMIT:?}; the last of {} bytes: {tail:?}", said.len());
        let count = from.read(&mut piece)?;
        ensure!(count > 0, "the end before {text:?}; the last of {} bytes: {tail:?}", said.len());
        said.extend(&piece[..count]);
    }
}

/// How much of what was said a failure shows.
const SHOWN: usize = 500;
/// For what kubectl waits for at most.
const KUBECTL_LIMIT: Duration = Duration::from_secs(60);
