//! Starts the examples and shows what became of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::node::cgroups::of_class;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::vm::{self, Feature};
use berth_integration::wait::{self, Look};
use berth_integration::{agent, cgroup, components, containerd, files, http};

const WEB: &str = "web";
const ONCE: &str = "once";
const LOGGED: &str = "init-and-sidecar";
const HOST_PORT: u16 = 8080;

pub(crate) fn show(node: &Node) -> Result<()> {
    let names = apply_examples(node)?;
    for name in &names {
        let pod = if name == ONCE {
            node.wait(name, "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?
        } else {
            node.ready(name)?
        };
        println!("  {name}: {}", if name == ONCE { "ran to its end" } else { "Ready" });
        ensure!(!pod.uid().is_empty(), "{name} has no UID");
    }
    berth(&["pods"])?;
    requests(&node.ready(WEB)?)?;
    let logged = node.ready(LOGGED)?;
    berth(&["logs", logged.name(), "--container", "tail", "--tail", "3"])?;
    for kind in ["containers", "tasks"] {
        println!("\n$ ctr -n k8s.io {kind} ls\n{}", containerd::ctr(&[kind, "ls"])?.trim_end());
    }
    let pods = of_class(&node.world, "");
    let top = cgroup::of_controller("memory").join(Path::new(&pods).parent().unwrap_or(Path::new("")));
    println!("\n{}", top.display());
    cgroups(&top, 1)?;
    println!("\nThe manifests are in {}", node.manifests().display());
    Ok(())
}

fn apply_examples(node: &Node) -> Result<Vec<String>> {
    println!("starting the pods of examples/");
    let mut names = Vec::new();
    for path in files::list(components::workspace().join("examples"))? {
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            node.apply(&name, &files::read(&path)?)?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn berth(args: &[&str]) -> Result<()> {
    println!("\n$ berth {}\n{}", args.join(" "), agent::berth(args)?.trim_end());
    Ok(())
}

fn requests(web: &PodState) -> Result<()> {
    let host_port = (!vm::lacks(Feature::Nat)).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, HOST_PORT)));
    for at in [SocketAddr::from((web.ip()?, 80))].into_iter().chain(host_port) {
        // Its server listens a moment after its container runs.
        let page = wait::until(&format!("{at} to answer"), POD_LIMIT, || {
            Ok(match http::page(at, "/") {
                Ok(page) => Look::Ready(page),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        println!("\n$ curl http://{at}/\n{}", page.text().trim_end());
    }
    Ok(())
}

/// Prints the groups below `dir`, each with its memory limit where it has one. That of a pod that has ended may go meanwhile.
fn cgroups(dir: &Path, depth: usize) -> Result<()> {
    // What the kernel shows for "no limit".
    const UNLIMITED: u64 = i64::MAX as u64 / 4096 * 4096;
    let file = if cgroup::is_unified() { "memory.max" } else { "memory.limit_in_bytes" };
    let mut groups = files::list_if_there(dir)?;
    groups.sort();
    for group in groups.iter().filter(|group| group.is_dir()) {
        let Some(bytes) = files::read_if_there(group.join(file))? else { continue };
        let limit = match bytes.trim() {
            "max" => UNLIMITED,
            bytes => bytes.parse().context("a limit is no number")?,
        };
        let limit = if limit >= UNLIMITED { String::new() } else { format!("  limit {} MiB", limit >> 20) };
        let name = group.file_name().unwrap_or_default().to_string_lossy();
        println!("{:indent$}{name}{limit}", "", indent = depth * 2);
        cgroups(group, depth + 1)?;
    }
    Ok(())
}
