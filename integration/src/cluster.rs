//! A real control plane: etcd, kube-apiserver and, where they are asked for, kube-controller-manager and kube-scheduler.
//!
//! It lives in the lab of its test, as everything else does, and ends with it. Labs are apart in their networks and processes, so
//! none can share another's, and one outside would keep objects, nodes and loads of one test for the next, with nobody to clear
//! them. So each test that needs one has its own: 3.3 s, of which 1.6 s of a processor, for etcd and API server, about as much again with
//! controllers and scheduler (900 MB in all, 550 MB without). What belongs together shares one within a test: namespaces are cheap, any number of nodes can
//! join, each with a kubeconfig of its own ([`Cluster::node_kubeconfig`]), and the audit log tells them apart.

mod audit;
mod pki;
mod programs;

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

pub use self::audit::{AuditEvent, ObjectRef, ResponseStatus, User};
use self::pki::Pki;
pub use self::pki::{TOKEN, VERSION};
use crate::process::Process;
use crate::wait::{self, Look};
use crate::{components, http};

/// Where the API server listens: the lab's own address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// The port of the API server.
pub const PORT: u16 = 6443;
/// Where it is asked in plain HTTP, as its administrator.
const WAY_IN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
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
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Without controllers pods need no service account, and nobody takes the taint of a node that became ready away.
    pub parts: Vec<Part>,
    /// Further arguments of the API server, the last of which count.
    pub api_server: Vec<String>,
    /// Further arguments of the controllers.
    pub controllers: Vec<String>,
}

impl Settings {
    /// Everything.
    #[must_use]
    pub fn whole() -> Self {
        Self { parts: vec![Part::Controllers, Part::Scheduler], ..Self::default() }
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
    way_in: Process,
    api_server: Option<Process>,
    etcd: Process,
}

impl Cluster {
    /// Starts one with its files in `dir`, and waits until it serves.
    ///
    /// # Errors
    /// A component is missing, or does not become ready.
    pub fn start(dir: &Path, settings: &Settings) -> Result<Self> {
        let pki = Pki::make(dir, ADDRESS, PORT)?;
        fs::write(dir.join("audit-policy.yaml"), programs::AUDIT_POLICY)?;
        let etcd = Process::start("etcd", &mut programs::etcd(dir)?, &dir.join("etcd.log"))?;
        let mut way_in = programs::way_in(&pki, WAY_IN.port())?;
        let way_in = Process::start("kubectl proxy", &mut way_in, &dir.join("kubectl-proxy.log"))?;
        let (dir, settings) = (dir.to_owned(), settings.clone());
        let mut cluster = Self { dir, settings, pki, parts: Vec::new(), way_in, api_server: None, etcd };
        cluster.start_api_server()?;
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
        let mut command = programs::api_server(&self.dir, &self.pki, ADDRESS, PORT)?;
        if !self.settings.parts.contains(&Part::Controllers) {
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        command.args(&self.settings.api_server);
        let mut process =
            Process::start("kube-apiserver", &mut command, &self.dir.join("kube-apiserver.log"))?;
        process.ready(START_LIMIT, || {
            Ok(match http::get(WAY_IN, "/readyz") {
                Ok(answer) if answer.status == 200 => Look::Ready(()),
                Ok(answer) => Look::NotYet(format!("{} {}", answer.status, answer.text())),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.api_server = Some(process);
        Ok(())
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
        let (name, mut command) = match part {
            Part::Controllers => ("kube-controller-manager", programs::controllers(&self.pki)?),
            Part::Scheduler => ("kube-scheduler", programs::scheduler(&self.pki)?),
        };
        if part == Part::Controllers {
            command.args(&self.settings.controllers);
        }
        let process = Process::start(name, &mut command, &self.dir.join(format!("{name}.log")))?;
        self.parts.push((part, process));
        Ok(())
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
        self.way_in.kill()?;
        self.api_server.map_or(Ok(()), Process::kill)?;
        self.etcd.kill()
    }

    /// Where the API server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (ADDRESS, PORT).into()
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
        let first = [("etcd", self.etcd.pid()), ("kubectl proxy", self.way_in.pid())];
        first.into_iter().chain(api_server).chain(self.parts.iter().map(part)).collect()
    }
}

/// Who asks, and for what.
impl Cluster {
    /// The kubeconfig of its administrator.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.pki.admin()
    }

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
        let admin = self.admin_kubeconfig().display().to_string();
        self.pki.kubeadm(&["init", "phase", "bootstrap-token", "--kubeconfig", &admin])?;
        self.pki.of_bootstrap()
    }

    /// What `kubectl` printed, as the administrator.
    ///
    /// # Errors
    /// It failed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_as(&self.admin_kubeconfig(), args, "")
    }

    /// What `kubectl` printed, with a kubeconfig and an input.
    ///
    /// # Errors
    /// It failed; the failure has what it said.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(components::binary("kubectl")?)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(args)
            // What it learns of the server is kept there.
            .env("HOME", &self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        child.stdin.take().context("kubectl has no input")?.write_all(input.as_bytes())?;
        let done = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "kubectl {} ended with {}: {said}", args.join(" "), done.status);
        Ok(String::from_utf8(done.stdout)?)
    }

    /// Makes or changes objects, as the administrator.
    ///
    /// # Errors
    /// They were refused.
    pub fn apply(&self, objects: &str) -> Result<()> {
        self.kubectl_as(&self.admin_kubeconfig(), &["apply", "--filename", "-"], objects).map(drop)
    }

    /// An object or a list by its path, `/api/v1/nodes/one`, as the administrator: costs far less than kubectl.
    ///
    /// # Errors
    /// It is not there, or the API server does not answer.
    pub fn get_json(&self, path: &str) -> Result<Value> {
        let answer = http::get(WAY_IN, path)?;
        ensure!(answer.status == 200, "get {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).with_context(|| format!("{path} is no JSON"))
    }

    /// As [`Cluster::get_json`], with nothing for what is not there.
    ///
    /// # Errors
    /// The API server does not answer, or otherwise.
    pub fn find_json(&self, path: &str) -> Result<Option<Value>> {
        let answer = http::get(WAY_IN, path)?;
        if answer.status == 404 {
            return Ok(None);
        }
        ensure!(answer.status == 200, "get {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).with_context(|| format!("{path} is no JSON"))
    }

    /// A request other than a get, as the administrator: `POST`, `PUT`, `PATCH` with the type of the patch, `DELETE`.
    ///
    /// # Errors
    /// It was refused, or the API server does not answer.
    pub fn request(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value> {
        let answer = http::request(WAY_IN, method, path, content_type, body.to_string().as_bytes())?;
        ensure!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).with_context(|| format!("{method} {path} gave no JSON"))
    }

    /// Makes an object with a `POST` to the path of its kind.
    ///
    /// # Errors
    /// As of [`Cluster::request`].
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.request("POST", path, "application/json", object)
    }

    /// Waits until an object is there and as wanted.
    ///
    /// # Errors
    /// It was not in time, or the API server does not answer.
    pub fn wait_for(&self, path: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        wait::until(&format!("{path} to be {what}"), START_LIMIT, || {
            Ok(match self.find_json(path)? {
                Some(object) if wanted(&object) => Look::Ready(object),
                Some(object) => Look::NotYet(object.to_string()),
                None => Look::NotYet("it is not there".to_owned()),
            })
        })
    }

    /// Everything that was asked so far, watches as they began and as they ended.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&self.dir.join(AUDIT))
    }
}
