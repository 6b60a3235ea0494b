//! Who asks an API server: `kubectl`, and plain HTTP through `kubectl proxy`, which speaks TLS with the administrator's
//! certificate and costs a test nothing.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::START_LIMIT;
use crate::node::system;
use crate::process::{Process, tail};
use crate::wait::{self, Look};
use crate::{components, http};

const WAY_IN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);

/// Asks as the administrator of a cluster. One in a lab.
#[derive(Debug)]
pub struct Client {
    home: PathBuf,
    kubeconfig: PathBuf,
    way_in: Process,
}

impl Client {
    /// One with the kubeconfig of an administrator; `home` is where kubectl keeps what it learns of the server. The server
    /// need not be there yet.
    ///
    /// # Errors
    /// kubectl is missing.
    pub fn new(home: &Path, kubeconfig: PathBuf) -> Result<Self> {
        let mut command = Command::new(components::binary("kubectl")?);
        command.args([
            "proxy",
            "--disable-filter=true",
            &format!("--port={}", WAY_IN.port()),
            "--kubeconfig",
        ]);
        let mut way_in =
            Process::start("kubectl proxy", command.arg(&kubeconfig), &home.join("kubectl-proxy.log"))?;
        way_in.ready(START_LIMIT, || {
            Ok(match TcpStream::connect(WAY_IN) {
                Ok(_listens) => Look::Ready(()),
                Err(failure) => Look::NotYet(failure.to_string()),
            })
        })?;
        Ok(Self { home: home.to_owned(), kubeconfig, way_in })
    }

    /// The kubeconfig of the administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where kubectl keeps what it learns of the server.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Whether the server says that it is ready.
    ///
    /// # Errors
    /// It is not.
    pub fn is_ready(&self) -> Result<()> {
        let answer = http::get(WAY_IN, "/readyz")?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.way_in.pid()
    }

    /// Ends its process.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn end(self) -> Result<()> {
        self.way_in.kill()
    }

    /// What `kubectl` printed, as the administrator.
    ///
    /// # Errors
    /// It failed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_as(&self.kubeconfig, args, "")
    }

    /// The command `kubectl …`, as the administrator.
    ///
    /// # Errors
    /// kubectl is missing.
    pub fn command(&self, args: &[&str]) -> Result<Command> {
        self.command_as(&self.kubeconfig, args)
    }

    fn command_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(components::binary("kubectl")?);
        // What it learns of the server is kept there.
        command.arg("--kubeconfig").arg(kubeconfig).args(args).env("HOME", &self.home);
        Ok(command)
    }

    /// What `kubectl` printed, with a kubeconfig and an input.
    ///
    /// # Errors
    /// It failed; the failure has what it said.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<String> {
        let mut child = self
            .command_as(kubeconfig, args)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        let written = child.stdin.take().context("kubectl has no input")?.write_all(input.as_bytes());
        let done = child.wait_with_output().context("wait for kubectl")?;
        let said = String::from_utf8_lossy(&done.stderr);
        // One that failed may have read nothing, and says itself why.
        ensure!(done.status.success(), "kubectl {} ended with {}: {said}", args.join(" "), done.status);
        written.with_context(|| format!("write to kubectl {}", args.join(" ")))?;
        String::from_utf8(done.stdout).with_context(|| format!("what kubectl {} printed", args.join(" ")))
    }

    /// What there is to know when something did not come about: nodes, pods, events, and the logs of pods on this machine.
    #[must_use]
    pub fn situation(&self) -> String {
        let mut told = String::new();
        for what in ["nodes", "pods", "events"] {
            let said = self.kubectl(&["get", what, "--all-namespaces", "--output", "wide"]);
            told.push_str(&said.unwrap_or_else(|failure| format!("{failure:#}")));
        }
        let logs = system("find", &["/var/log/pods", "-name", "*.log"]).unwrap_or_default();
        for log in logs.lines() {
            told.push_str(log);
            told.push('\n');
            told.push_str(&tail(Path::new(log)));
        }
        told
    }

    /// Makes or changes objects, as the administrator.
    ///
    /// # Errors
    /// They were refused.
    pub fn apply(&self, objects: &str) -> Result<()> {
        self.kubectl_as(&self.kubeconfig, &["apply", "--filename", "-"], objects).map(drop)
    }

    /// What a path answers, whatever its code, as the administrator.
    ///
    /// # Errors
    /// The API server does not answer.
    pub fn get(&self, path: &str) -> Result<http::Answer> {
        http::get(WAY_IN, path)
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

    /// As [`Self::get_json`], with nothing for what is not there.
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
    /// As of [`Self::request`].
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
        .with_context(|| self.situation())
    }

    /// Waits until there is no object at a path any more.
    ///
    /// # Errors
    /// It is there for too long, or the API server does not answer.
    pub fn wait_gone(&self, path: &str) -> Result<()> {
        wait::until(&format!("{path} to be gone"), START_LIMIT, || {
            Ok(match self.find_json(path)? {
                Some(object) => Look::NotYet(object.to_string()),
                None => Look::Ready(()),
            })
        })
        .with_context(|| self.situation())
    }
}
