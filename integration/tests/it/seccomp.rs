//! Seccomp profiles of the node: files below the agent's root directory that pods name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, berth};
use berth_integration::node::{Node, POD_LIMIT};
use serde_json::{Value, json};

use crate::kit::{events, eventually, exec, pod, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("seccomp::a_profile_of_the_node_is_in_force", in_force),
        test("seccomp::a_profile_that_cannot_be_had_starts_nothing", missing),
        test("seccomp::a_name_cannot_leave_the_directory", names),
    ]
}

fn in_force() -> Result<()> {
    let node = Node::start()?;
    profile("pods/no-links.json", &["symlink", "symlinkat"])?;
    profile("no-directories.json", &["mkdir", "mkdirat"])?;
    node.apply(
        "filtered",
        &pod(
            "filtered",
            json!({
                "securityContext": { "seccompProfile": local("pods/no-links.json") },
                "containers": [
                    sleeps("of-pod", json!({})),
                    sleeps("own", json!({ "seccompProfile": local("no-directories.json") })),
                    sleeps("free", json!({ "seccompProfile": { "type": "Unconfined" } })),
                    sleeps("privileged", json!({ "privileged": true })),
                ],
            }),
        ),
    )?;
    let filtered = node.ready("filtered")?;
    let (refused, done) = ("Operation not permitted", "done");
    for (container, filter, directory, link) in [
        ("of-pod", "2", done, refused),
        ("own", "2", refused, done),
        ("free", "0", done, done),
        ("privileged", "0", done, done),
    ] {
        let tries = |command: &str| -> Result<String> {
            exec(&filtered, container, &["/bin/sh", "-c", &format!("{command} 2>&1 && echo done || true")])
        };
        same(
            container,
            tries("grep -w Seccomp: /proc/1/status | tr -dc 0-9")?.as_str(),
            &*format!("{filter}done\n"),
        )?;
        for (command, wanted) in [("mkdir /tmp/directory", directory), ("ln -s there /tmp/link", link)] {
            let said = tries(command)?;
            ensure!(said.trim_end().ends_with(wanted), "{container}: {command}: {said}");
        }
    }
    node.end()
}

/// As under the kubelet with containerd's CRI, whose `cannot load seccomp profile` this is.
fn missing() -> Result<()> {
    let node = Node::start()?;
    fs::create_dir_all(directory().join("directory.json"))?;
    fs::write(directory().join("empty.json"), "")?;
    for (name, file, why) in [
        ("missing", "missing.json", "no such file"),
        ("empty", "empty.json", "the file is empty"),
        ("unreadable", "directory.json", "Is a directory (os error 21)"),
    ] {
        node.apply(name, &with_profile(name, file))?;
        let refused =
            node.wait(name, "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerError")?;
        let wanted = format!("cannot load seccomp profile {:?}: {why}", directory().join(file));
        let told = refused.container("main")["state"]["waiting"]["message"].as_str();
        same(name, told, Some(wanted.as_str()))?;
        let told = events(&refused)?;
        ensure!(told.contains(&format!("Error: {wanted}")), "{told}");
    }
    profile("missing.json", &["mkdir", "mkdirat"])?;
    let found = node.ready("missing")?;
    let tried = exec(&found, "main", &["/bin/sh", "-c", "mkdir /tmp/x 2>&1 || true"])?;
    ensure!(tried.contains("Operation not permitted"), "{tried}");
    node.end()
}

fn names() -> Result<()> {
    let node = Node::start()?;
    profile("../outside.json", &["mkdir", "mkdirat"])?;
    let outside = Path::new(ROOT_DIR).join("outside.json").display().to_string();
    for (name, file) in [
        ("up", "../outside.json"),
        ("through", "pods/../../outside.json"),
        ("absolute", &outside),
        ("nowhere", ""),
    ] {
        node.apply(name, &with_profile(name, file))?;
        eventually(&format!("{name} to be refused"), &true, || {
            let shown = berth(&["pods"])?;
            let mut lines = shown.lines();
            Ok(lines.any(|line| line.contains(&format!("{name}.yaml")) && line.contains("localhostProfile")))
        })?;
        ensure!(node.pod(name)?.is_none(), "{name} is a pod");
    }
    // A link is the administrator's: profiles may be kept elsewhere, as the security profiles operator does.
    let kept = node.world.root().join("kept");
    fs::create_dir(&kept)?;
    fs::copy(&outside, kept.join("profile.json"))?;
    symlink(&kept, directory().join("operator"))?;
    node.apply("linked", &with_profile("linked", "operator/profile.json"))?;
    let linked = node.ready("linked")?;
    let tried = exec(&linked, "main", &["/bin/sh", "-c", "mkdir /tmp/x 2>&1 || true"])?;
    ensure!(tried.contains("Operation not permitted"), "{tried}");
    node.end()
}

fn directory() -> PathBuf {
    Path::new(ROOT_DIR).join("seccomp")
}

/// Writes a profile that refuses some calls and allows all others.
fn profile(file: &str, refused: &[&str]) -> Result<()> {
    let path = directory().join(file);
    fs::create_dir_all(path.parent().context("no directory")?)?;
    let profile = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": refused, "action": "SCMP_ACT_ERRNO" }],
    });
    Ok(fs::write(path, profile.to_string())?)
}

fn local(file: &str) -> Value {
    json!({ "type": "Localhost", "localhostProfile": file })
}

fn sleeps(name: &str, security: Value) -> Value {
    shell(name, "exec sleep infinity", json!({ "securityContext": security }))
}

fn with_profile(name: &str, file: &str) -> String {
    pod(name, json!({ "containers": [sleeps("main", json!({ "seccompProfile": local(file) }))] }))
}
