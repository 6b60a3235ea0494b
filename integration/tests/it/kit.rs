//! Manifests and looks that several tests share.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{berth, berth_output};
use berth_integration::cgroup;
use berth_integration::containerd::ctr_rows;
use berth_integration::lab::World;
use berth_integration::node::cgroups::{name_of_container, of_pod};
use berth_integration::node::{Node, PodState};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

/// The image of the examples.
pub(crate) const IMAGE: &str = "localhost:5000/busybox:1";
/// For what takes a moment.
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// A manifest: `spec` over a short grace period.
pub(crate) fn pod(name: &str, spec: Value) -> String {
    let spec = with(json!({ "terminationGracePeriodSeconds": 2 }), spec);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

/// A container that runs a shell script; `more` is merged into it.
pub(crate) fn shell(name: &str, script: &str, more: Value) -> Value {
    with(json!({ "name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script] }), more)
}

/// A map with the fields of another added or put in place of its own.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// A manifest of one container, `main`, that runs a script.
pub(crate) fn script(name: &str, script: &str) -> String {
    pod(name, json!({ "containers": [shell("main", script, json!({}))] }))
}

/// A manifest of one container that sleeps and goes at once.
pub(crate) fn sleeper(name: &str) -> String {
    script(name, "exec sleep infinity")
}

/// What a command in a container printed.
pub(crate) fn exec(pod: &PodState, container: &str, command: &[&str]) -> Result<String> {
    berth(&[&["exec", pod.name(), "--container", container, "--"], command].concat())
}

/// What a shell script in the container `main` printed, without the line end.
pub(crate) fn inside(pod: &PodState, script: &str) -> Result<String> {
    Ok(exec(pod, "main", &["/bin/sh", "-c", script])?.trim_end().to_owned())
}

/// The log of a container as `berth logs` shows it.
pub(crate) fn logs(pod: &PodState, container: &str, more: &[&str]) -> Result<String> {
    berth(&[&["logs", pod.name(), "--container", container], more].concat())
}

/// What the agent tells about a pod, its events among it.
pub(crate) fn events(pod: &PodState) -> Result<String> {
    berth(&["inspect", pod.name()])
}

/// Waits until the log of a container says something.
pub(crate) fn logged(pod: &PodState, container: &str, text: &str) -> Result<String> {
    wait::until(&format!("{text:?} in the log of {container}"), SOON, || {
        let said = logs(pod, container, &[])?;
        Ok(if said.contains(text) { Look::Ready(said) } else { Look::NotYet(said) })
    })
}

/// The process of a container's task, as `ctr` shows it.
pub(crate) fn task_pid(id: &str) -> Result<u32> {
    let tasks = ctr_rows(&["tasks", "ls"])?;
    let task = tasks.iter().find(|row| row[0] == id).with_context(|| format!("no task {id} in {tasks:?}"))?;
    Ok(task[1].parse()?)
}

/// A value of a pod's cgroup; `below` is the container's id or empty.
pub(crate) fn cgroup_value(
    node: &Node,
    class: &str,
    pod: &PodState,
    below: &str,
    file: &str,
) -> Result<String> {
    let controller = match file.split('.').next() {
        Some("cpu") => "cpu",
        Some("pids") => "pids",
        _ => "memory",
    };
    let below = if below.is_empty() { String::new() } else { name_of_container(below) };
    let path = cgroup_dir(&node.world, controller, class, pod).join(below).join(file);
    Ok(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?.trim().to_owned())
}

/// The directory of a pod's cgroup; `class` is empty for Guaranteed.
pub(crate) fn cgroup_dir(world: &World, controller: &str, class: &str, pod: &PodState) -> PathBuf {
    cgroup::of_controller(controller).join(of_pod(world, class, pod.uid()))
}

/// What a failing `berth` command said.
pub(crate) fn berth_fails(args: &[&str]) -> Result<String> {
    let done = berth_output(args)?;
    ensure!(!done.status.success(), "berth {} did not fail", args.join(" "));
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Waits until a look at the state says what is wanted.
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: &T,
    mut look: impl FnMut() -> Result<T>,
) -> Result<()> {
    wait::until(what, SOON, || {
        let found = look()?;
        Ok(if found == *wanted { Look::Ready(()) } else { Look::NotYet(format!("{found:?}")) })
    })
}
