//! A client of the Container Runtime Interface, as a kubelet or crictl is one: pods beside those of Berth.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::components;
use crate::containerd::SOCKET;

/// A pod of one container that CRI runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriPod {
    /// Its sandbox.
    pub sandbox: String,
    /// Its container.
    pub container: String,
}

/// Makes one call: `service/method` of `runtime.v1`.
///
/// # Errors
/// The call failed.
pub fn call(method: &str, request: &Value) -> Result<Value> {
    call_at(SOCKET, method, request)
}

/// As [`call`], of another containerd.
///
/// # Errors
/// The call failed.
pub fn call_at(socket: &str, method: &str, request: &Value) -> Result<Value> {
    let mut child = Command::new(components::binary("cri")?)
        .args([socket, method])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start cri")?;
    let written = child.stdin.take().context("cri has no input")?.write_all(request.to_string().as_bytes());
    let done = child.wait_with_output().context("wait for cri")?;
    // One that failed may have read nothing, and says itself why.
    ensure!(done.status.success(), "{method} {request}: {}", String::from_utf8_lossy(&done.stderr));
    written.with_context(|| format!("write {method} to cri"))?;
    serde_json::from_slice(&done.stdout).with_context(|| format!("{method} printed no JSON"))
}

/// Runs a pod of one container with a shell script, below a cgroup, with the network of CRI's configuration or the node's.
///
/// # Errors
/// A call failed.
pub fn run(name: &str, cgroup: &str, own_network: bool, image: &str, script: &str) -> Result<CriPod> {
    let network = if own_network { "POD" } else { "NODE" };
    let sandbox_config = json!({
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "namespace": "neighbours", "attempt": 0 },
        // Without a UTS namespace of its own a name would be the node's.
        "hostname": if own_network { name } else { "" },
        "logDirectory": format!("/var/log/pods/neighbours_{name}_uid-of-{name}"),
        "labels": {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": "neighbours",
            "io.kubernetes.pod.uid": format!("uid-of-{name}"),
        },
        "linux": {
            "cgroupParent": cgroup,
            "securityContext": { "namespaceOptions": { "network": network } },
        },
    });
    let made = call("RuntimeService/RunPodSandbox", &json!({ "config": sandbox_config }))?;
    let sandbox = text(&made, "podSandboxId")?;
    let pulled = call(
        "ImageService/PullImage",
        &json!({ "image": { "image": image }, "sandboxConfig": sandbox_config }),
    )?;
    let config = json!({
        "metadata": { "name": "main", "attempt": 0 },
        "image": { "image": text(&pulled, "imageRef")? },
        "command": ["/bin/sh", "-c", script],
        "logPath": "main/0.log",
        "linux": {},
    });
    let made = call(
        "RuntimeService/CreateContainer",
        &json!({ "podSandboxId": sandbox, "config": config, "sandboxConfig": sandbox_config }),
    )?;
    let container = text(&made, "containerId")?;
    call("RuntimeService/StartContainer", &json!({ "containerId": container }))?;
    Ok(CriPod { sandbox, container })
}

/// The ids of all sandboxes that CRI lists.
///
/// # Errors
/// The call failed.
pub fn sandboxes() -> Result<Vec<String>> {
    ids(&call("RuntimeService/ListPodSandbox", &json!({}))?["items"])
}

/// The ids of all containers that CRI lists.
///
/// # Errors
/// The call failed.
pub fn containers() -> Result<Vec<String>> {
    ids(&call("RuntimeService/ListContainers", &json!({}))?["containers"])
}

impl CriPod {
    /// What CRI says of the container: state, start, end, and its process.
    ///
    /// # Errors
    /// The call failed.
    pub fn container_status(&self) -> Result<Value> {
        let request = json!({ "containerId": self.container, "verbose": true });
        let answer = call("RuntimeService/ContainerStatus", &request)?;
        let info: Value = serde_json::from_str(&text(&answer["info"], "info")?)?;
        let status = &answer["status"];
        Ok(json!({
            "state": status["state"],
            "startedAt": status["startedAt"],
            "exitCode": status["exitCode"],
            "pid": info["pid"],
        }))
    }

    /// What CRI says of the sandbox: state, address, and its process.
    ///
    /// # Errors
    /// The call failed.
    pub fn sandbox_status(&self) -> Result<Value> {
        let request = json!({ "podSandboxId": self.sandbox, "verbose": true });
        let answer = call("RuntimeService/PodSandboxStatus", &request)?;
        let info: Value = serde_json::from_str(&text(&answer["info"], "info")?)?;
        let status = &answer["status"];
        Ok(json!({ "state": status["state"], "network": status["network"], "pid": info["pid"] }))
    }

    /// What a command in the container printed.
    ///
    /// # Errors
    /// The call failed.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        let request = json!({ "containerId": self.container, "cmd": command, "timeout": 20 });
        let answer = call("RuntimeService/ExecSync", &request)?;
        // Bytes are base64 in JSON; what tests print is compared in that form.
        text(&answer, "stdout")
    }

    /// Stops and removes the pod.
    ///
    /// # Errors
    /// A call failed.
    pub fn remove(&self) -> Result<()> {
        remove_sandbox(&self.sandbox)
    }
}

/// Stops and removes a pod by its sandbox.
///
/// # Errors
/// A call failed.
pub fn remove_sandbox(id: &str) -> Result<()> {
    call("RuntimeService/StopPodSandbox", &json!({ "podSandboxId": id }))?;
    call("RuntimeService/RemovePodSandbox", &json!({ "podSandboxId": id })).map(drop)
}

fn ids(list: &Value) -> Result<Vec<String>> {
    list.as_array().context("no list")?.iter().map(|item| text(item, "id")).collect()
}

fn text(value: &Value, field: &str) -> Result<String> {
    Ok(value[field].as_str().with_context(|| format!("no {field} in {value}"))?.to_owned())
}
