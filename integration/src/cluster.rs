//! A real control plane: etcd, kube-apiserver and, where they are asked for, kube-controller-manager and kube-scheduler.
//!
//! It lives in the lab of its test, as everything else does, and ends with it. Labs are apart in their networks and processes,
//! so none can share another's, and one outside would keep objects, nodes and loads of one test for the next, with nobody to
//! clear them. So each test that needs one has its own. etcd and API server are there after 3 s, 1.5 s of a processor and 550 MB
//! of memory, programs among them, and all of it after 5 s, 2 s and 800 MB (`cluster` tests, two processors). What belongs
//! together shares one within a test: namespaces are cheap, any number of nodes can join, each with a kubeconfig of its own
//! ([`Cluster::node_kubeconfig`]), and the audit log tells them apart.

mod audit;
mod client;
pub mod faults;
pub mod images;
pub mod kubeadm;
pub mod metrics;
pub mod network;
mod pki;
mod programs;
pub mod proxy;
mod serving;
pub mod watch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

pub use self::audit::{AuditEvent, ObjectRef, ResponseStatus, User, refused};
pub use self::client::Client;
use self::pki::Pki;
pub use self::pki::{TOKEN, VERSION};
use crate::components;
use crate::files;
use crate::node::system;
use crate::process::Process;
use crate::wait::Look;

/// Where the API server listens: the lab's own address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// The same of a lab that a test has given one ([`Settings::address`]).
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
/// The port of the API server.
pub const PORT: u16 = 6443;
const AUDIT: &str = "audit.log";
/// On a machine busy with other tests; two seconds on one that is not.
const START_LIMIT: Duration = Duration::from_secs(90);

/// What runs beside etcd and the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// kube-controller-manager, with everything that it can do.
    Controllers,
    /// kube-scheduler.
    Scheduler,
}

/// What a test may want otherwise.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Without controllers pods need no service account, and nobody takes the taint of a node that became ready away.
    pub parts: Vec<Part>,
    /// Further arguments of the API server, the last of which count.
    pub api_server: Vec<String>,
    /// Further arguments of the controllers.
    pub controllers: Vec<String>,
    /// Where the API server listens. Services and pods have addresses of its family.
    pub address: IpAddr,
    /// Whether the API server asks only nodes whose server has a certificate of the cluster's authority.
    pub checks_nodes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (parts, api_server, controllers) = (Vec::new(), Vec::new(), Vec::new());
        Self { parts, api_server, controllers, address: ADDRESS.into(), checks_nodes: false }
    }
}

impl Settings {
    /// Everything.
    #[must_use]
    pub fn whole() -> Self {
        Self { parts: vec![Part::Controllers, Part::Scheduler], ..Self::default() }
    }

    /// An API server that asks nodes, and others who serve a part of its API; without controllers.
    #[must_use]
    pub fn asking_nodes() -> Self {
        let api_server = vec!["--enable-aggregator-routing=true".to_owned()];
        Self { api_server, checks_nodes: true, ..Self::default() }
    }

    /// Controllers whose signer gives certificates of a minute. It has them begin five minutes earlier: they are nearly over when they
    /// come, and are asked for again.
    #[must_use]
    pub fn with_brief_certificates() -> Self {
        Self::with_certificates_of(60)
    }

    /// Controllers whose signer gives certificates that end after so many seconds. It has them begin five minutes earlier.
    #[must_use]
    pub fn with_certificates_of(seconds: u32) -> Self {
        Self {
            parts: vec![Part::Controllers],
            controllers: vec![format!("--cluster-signing-duration={seconds}s")],
            ..Self::default()
        }
    }
}

/// A running control plane. Dropping it kills it.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    settings: Settings,
    pki: Pki,
    // In the order in which they are to end.
    parts: Vec<(Part, Process)>,
    client: Client,
    api_server: Option<Process>,
    etcd: Process,
}

impl Cluster {
    /// Starts one with its files in `dir`, and waits until it serves.
    ///
    /// # Errors
    /// A component is missing, or does not become ready.
    pub fn start(dir: &Path, settings: &Settings) -> Result<Self> {
        let pki = Pki::make(dir, settings.address, PORT)?;
        files::write(dir.join("audit-policy.yaml"), programs::AUDIT_POLICY)?;
        let etcd = Process::start("etcd", &mut programs::etcd(dir)?, &dir.join("etcd.log"))?;
        let client = Client::new(dir, pki.admin())?;
        let (dir, settings) = (dir.to_owned(), settings.clone());
        let mut cluster = Self { dir, settings, pki, parts: Vec::new(), client, api_server: None, etcd };
        cluster.start_api_server()?;
        // It makes them when it is ready, and nothing can be made in them before.
        for namespace in ["default", "kube-system", "kube-node-lease"] {
            cluster.wait_for(&format!("/api/v1/namespaces/{namespace}"), "there", |_| true)?;
        }
        for part in cluster.settings.parts.clone() {
            cluster.start_part(part)?;
        }
        if cluster.settings.parts.contains(&Part::Controllers) {
            // Without it no pod can be made.
            cluster.wait_for("/api/v1/namespaces/default/serviceaccounts/default", "there", |_| true)?;
        }
        Ok(cluster)
    }

    /// Starts the API server after [`Cluster::stop_api_server`] or [`Cluster::kill_api_server`], and waits until it serves.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_api_server(&mut self) -> Result<()> {
        let mut command = programs::api_server(&self.dir, &self.pki, self.settings.address, PORT)?;
        if !self.settings.parts.contains(&Part::Controllers) {
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        if self.settings.checks_nodes {
            command.arg(format!("--kubelet-certificate-authority={}", self.ca().display()));
        }
        command.args(&self.settings.api_server);
        let mut process =
            Process::start("kube-apiserver", &mut command, &self.dir.join("kube-apiserver.log"))?;
        process.ready(START_LIMIT, || {
            Ok(match self.client.is_ready() {
                Ok(()) => Look::Ready(()),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.api_server = Some(process);
        Ok(())
    }

    /// Adds an argument of the API server that is started from now on.
    pub fn add_api_server_argument(&mut self, argument: &str) {
        self.settings.api_server.push(argument.to_owned());
    }

    /// Ends the API server alone with SIGTERM.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop_api_server(&mut self) -> Result<()> {
        self.api_server.take().map_or(Ok(()), Process::stop)
    }

    /// Ends the API server alone with SIGKILL.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill_api_server(&mut self) -> Result<()> {
        self.api_server.take().map_or(Ok(()), Process::kill)
    }

    /// Stops the API server with SIGSTOP: connections stay and nothing is answered.
    ///
    /// # Errors
    /// It is not running.
    pub fn freeze_api_server(&self) -> Result<()> {
        self.api_server.as_ref().context("no API server runs")?.signal(Signal::SIGSTOP)
    }

    /// Lets the API server go on.
    ///
    /// # Errors
    /// It is not running.
    pub fn thaw_api_server(&self) -> Result<()> {
        self.api_server.as_ref().context("no API server runs")?.signal(Signal::SIGCONT)
    }

    /// Starts one of the other parts.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_part(&mut self, part: Part) -> Result<()> {
        let process = self.begin_part(part)?;
        self.parts.push((part, process));
        Ok(())
    }

    /// Starts one of the other parts, which is the caller's to end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn begin_part(&self, part: Part) -> Result<Process> {
        let (name, mut command) = match part {
            Part::Controllers => {
                ("kube-controller-manager", programs::controllers(&self.pki, self.settings.address)?)
            }
            Part::Scheduler => ("kube-scheduler", programs::scheduler(&self.pki)?),
        };
        if part == Part::Controllers {
            command.args(&self.settings.controllers);
        }
        Process::start(name, &mut command, &self.dir.join(format!("{name}.log")))
    }

    /// Ends one of the other parts with SIGKILL.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill_part(&mut self, part: Part) -> Result<()> {
        let found = self.parts.iter().position(|(one, _)| *one == part);
        found.map_or(Ok(()), |at| self.parts.remove(at).1.kill())
    }

    /// Ends all of it with SIGKILL; its files stay until the lab ends.
    ///
    /// # Errors
    /// A signal could not be sent.
    pub fn end(self) -> Result<()> {
        for (_, part) in self.parts {
            part.kill()?;
        }
        self.client.end()?;
        self.api_server.map_or(Ok(()), Process::kill)?;
        self.etcd.kill()
    }

    /// Where the API server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (self.settings.address, PORT).into()
    }

    /// The certificate of the authority of everything in it.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.pki.file("ca.crt")
    }

    /// A file of its certificates and keys, by the name that kubeadm gives it.
    #[must_use]
    pub fn pki(&self, name: &str) -> PathBuf {
        self.pki.file(name)
    }

    /// The processes, by name, for measurements.
    #[must_use]
    pub fn pids(&self) -> Vec<(&'static str, u32)> {
        let part = |(part, process): &(Part, Process)| match part {
            Part::Controllers => ("kube-controller-manager", process.pid()),
            Part::Scheduler => ("kube-scheduler", process.pid()),
        };
        let api_server = self.api_server.iter().map(|one| ("kube-apiserver", one.pid()));
        let first = [("etcd", self.etcd.pid()), ("kubectl proxy", self.client.pid())];
        first.into_iter().chain(api_server).chain(self.parts.iter().map(part)).collect()
    }
}

/// What is asked of the API server is asked through the client.
impl Deref for Cluster {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Who asks, and what was asked.
impl Cluster {
    /// The kubeconfig of a node: `system:node:<name>` of the group `system:nodes`, with a client certificate.
    ///
    /// # Errors
    /// kubeadm failed.
    pub fn node_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        self.pki.of_node(name)
    }

    /// A copy of a kubeconfig that leads to another address, at which somebody passes on what is said.
    ///
    /// # Errors
    /// It cannot be read, or not be written.
    pub fn kubeconfig_through(&self, kubeconfig: &Path, to: SocketAddr) -> Result<PathBuf> {
        self.pki.through(kubeconfig, to)
    }

    /// Lets nodes in by TLS bootstrap, as `kubeadm init` does: a token, the right to ask for a certificate and to have it, and
    /// `cluster-info`. The kubeconfig is what `--bootstrap-kubeconfig` takes; the token alone is [`TOKEN`].
    ///
    /// # Errors
    /// kubeadm failed.
    pub fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        self.phase(&["bootstrap-token"])?;
        self.pki.of_bootstrap()
    }

    /// Does what is left of `kubeadm init` for `kubeadm join` to work, and brings kube-proxy and CoreDNS.
    ///
    /// # Errors
    /// kubeadm failed.
    pub fn prepare_for_join(&self) -> Result<()> {
        self.let_nodes_join()?;
        self.phase(&["addon", "all"])
    }

    /// The same without kube-proxy and CoreDNS: kubeadm's configuration and that of kubelets as objects, and the rights of nodes
    /// that come.
    ///
    /// # Errors
    /// kubeadm failed.
    pub fn let_nodes_join(&self) -> Result<()> {
        self.phase(&["upload-config", "all"])?;
        self.phase(&["bootstrap-token"])
    }

    /// What an administrator is told to run on a node that is to join: with a token of its own, and the hash of the authority.
    ///
    /// # Errors
    /// kubeadm failed.
    pub fn join_command(&self) -> Result<String> {
        let program = components::binary("kubeadm")?.display().to_string();
        let admin = self.client.kubeconfig().display().to_string();
        system(&program, &["token", "create", "--print-join-command", "--kubeconfig", &admin])
    }

    fn phase(&self, phase: &[&str]) -> Result<()> {
        let admin = self.client.kubeconfig().display().to_string();
        self.pki.kubeadm(&[&["init", "phase"], phase, &["--kubeconfig", &admin]].concat()).map(drop)
    }

    /// Everything that was asked so far, watches as they began and as they ended.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&self.dir.join(AUDIT))
    }
}
