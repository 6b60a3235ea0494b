//! `berth inspect`: everything about one pod, for people.

use std::io::{self, Write};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod};
use serde_json::{Value, json};

use super::{age, pods::layout, summary};
use crate::{control::PodObject, manifest::as_container};

/// Writes everything that is known about the pod.
pub(super) fn print(
    out: &mut impl Write,
    object: &PodObject,
    width: Option<u16>,
    now: Timestamp,
) -> io::Result<()> {
    head(out, object, now)?;
    conditions(out, &object.pod, width, now)?;
    let spec = object.pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let main = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default();
    let ephemeral: Vec<Container> = ephemeral.iter().map(as_container).collect();
    let lists = [("Init containers", init), ("Containers", main), ("Ephemeral containers", &ephemeral)];
    for (title, containers) in lists {
        if !containers.is_empty() {
            writeln!(out, "\n{title}:")?;
        }
        for one in containers {
            container(out, one, status_of(&object.pod, &one.name), now)?;
            stalled_log(out, object, &one.name, now)?;
        }
    }
    hanging(out, object, width, now)?;
    events(out, object, width, now)
}

/// The pod's object, with what the API has no field for below `berth`.
pub(super) fn json(object: &PodObject) -> io::Result<Value> {
    let mut pod = serde_json::to_value(&object.pod)?;
    pod["berth"] = json!({ "hanging": object.hanging, "stalledLogs": object.stalled_logs });
    Ok(pod)
}

fn head(out: &mut impl Write, object: &PodObject, now: Timestamp) -> io::Result<()> {
    let pod = &object.pod;
    let status = pod.status.clone().unwrap_or_default();
    let sum = summary::summarize(pod, now);
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let ips = status.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect::<Vec<_>>().join(", ");
    let mut line = |name: &str, value: &str| match (name, value) {
        (_, "") => Ok(()),
        ("", more) => writeln!(out, "{:<15}{more}", ""),
        (name, value) => writeln!(out, "{:<15}{value}", format!("{name}:")),
    };
    line("Name", pod.metadata.name.as_deref().unwrap_or_default())?;
    line("Namespace", pod.metadata.namespace.as_deref().unwrap_or_default())?;
    line("UID", pod.metadata.uid.as_deref().unwrap_or_default())?;
    line("Node", pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default())?;
    line("Status", &sum.status)?;
    line("Phase", status.phase.as_deref().unwrap_or_default())?;
    line("Reason", status.reason.as_deref().unwrap_or_default())?;
    line("Message", status.message.as_deref().unwrap_or_default())?;
    line("Ready", &sum.ready)?;
    line("Restarts", &sum.restarts)?;
    line("Age", &age::since(now, created))?;
    line("IPs", &ips)?;
    line("QoS class", status.qos_class.as_deref().unwrap_or_default())?;
    line("Sandbox", object.sandbox.as_deref().unwrap_or_default())?;
    line("Logs", &object.log_directory)?;
    for (title, map) in [("Labels", &pod.metadata.labels), ("Annotations", &pod.metadata.annotations)] {
        for (index, (key, value)) in map.iter().flatten().enumerate() {
            line(if index == 0 { title } else { "" }, &format!("{key}={value}"))?;
        }
    }
    if !object.unsupported.is_empty() {
        writeln!(out, "\nNot acted on by this version:")?;
    }
    for field in &object.unsupported {
        writeln!(out, "  {field}")?;
    }
    Ok(())
}

fn conditions(out: &mut impl Write, pod: &Pod, width: Option<u16>, now: Timestamp) -> io::Result<()> {
    let all = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    if all.is_empty() {
        return Ok(());
    }
    let rows = all.iter().map(|condition| {
        let since = condition.last_transition_time.as_ref().map(|time| time.0);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let kind = format!("  {}", condition.type_);
        vec![
            kind,
            condition.status.clone(),
            age::since(now, since),
            text(&condition.reason),
            text(&condition.message),
        ]
    });
    let header = ["  TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"].map(str::to_owned).to_vec();
    write!(out, "\nConditions:\n{}", layout(header, rows, width))
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let others = status.init_container_statuses.iter().chain(&status.ephemeral_container_statuses);
    let all = status.container_statuses.iter().chain(others);
    all.flatten().find(|status| status.name == name)
}

fn container(
    out: &mut impl Write,
    container: &Container,
    status: Option<&ContainerStatus>,
    now: Timestamp,
) -> io::Result<()> {
    writeln!(out, "  {}:", container.name)?;
    let mut line = |name: &str, value: &str| {
        if value.is_empty() { Ok(()) } else { writeln!(out, "    {:<13}{value}", format!("{name}:")) }
    };
    line("Image", container.image.as_deref().unwrap_or_default())?;
    if let Some(status) = status {
        line("Image id", &status.image_id)?;
        line("Id", status.container_id.as_deref().unwrap_or_default())?;
        line("State", &status.state.as_ref().map(|state| state_text(state, now)).unwrap_or_default())?;
        line(
            "Last state",
            &status.last_state.as_ref().map(|state| state_text(state, now)).unwrap_or_default(),
        )?;
        line("Ready", if status.ready { "yes" } else { "no" })?;
        line("Restarts", &status.restart_count.to_string())?;
    }
    line(
        "Command",
        &container.command.iter().chain(&container.args).flatten().cloned().collect::<Vec<_>>().join(" "),
    )?;
    for mount in container.volume_mounts.iter().flatten() {
        let read_only = if mount.read_only == Some(true) { " (read-only)" } else { "" };
        line("Mount", &format!("{} from {}{read_only}", mount.mount_path, mount.name))?;
    }
    Ok(())
}

fn stalled_log(out: &mut impl Write, object: &PodObject, name: &str, now: Timestamp) -> io::Result<()> {
    let Some(log) = object.stalled_logs.iter().find(|log| log.container == name) else { return Ok(()) };
    let since = age::since(now, Some(log.since));
    writeln!(out, "    {:<13}its disk has not answered for {since}", "Log:")
}

fn state_text(state: &ContainerState, now: Timestamp) -> String {
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(|text| format!(": {text}"));
    if let Some(running) = &state.running {
        return format!("running for {}", age::since(now, running.started_at.as_ref().map(|time| time.0)));
    }
    if let Some(ended) = &state.terminated {
        let reason = ended.reason.as_deref().unwrap_or("terminated");
        let message = text(ended.message.as_ref()).unwrap_or_default();
        let when = age::since(now, ended.finished_at.as_ref().map(|time| time.0));
        return format!("{reason} with exit code {}, {when} ago{message}", ended.exit_code);
    }
    let waiting = state.waiting.clone().unwrap_or_default();
    format!(
        "waiting{}{}",
        text(waiting.reason.as_ref()).unwrap_or_default(),
        text(waiting.message.as_ref()).unwrap_or_default()
    )
}

fn hanging(out: &mut impl Write, object: &PodObject, width: Option<u16>, now: Timestamp) -> io::Result<()> {
    if object.hanging.is_empty() {
        return Ok(());
    }
    let rows = object.hanging.iter().map(|one| {
        let since = age::since(now, Some(one.since));
        vec![format!("  {}", one.what), since, one.path.clone(), one.process.to_string()]
    });
    let header = ["  WHAT", "SINCE", "PATH", "PROCESS"].map(str::to_owned).to_vec();
    write!(out, "\nHanging:\n{}", layout(header, rows, width))
}

fn events(out: &mut impl Write, object: &PodObject, width: Option<u16>, now: Timestamp) -> io::Result<()> {
    if object.events.is_empty() {
        return Ok(());
    }
    let rows = object.events.iter().map(|event| {
        let last = age::since(now, Some(event.last));
        let when = if event.count > 1 {
            format!("{last} (x{} over {})", event.count, age::since(now, Some(event.first)))
        } else {
            last
        };
        let container = event.container.clone().unwrap_or_default();
        vec![
            format!("  {when}"),
            event.severity.clone(),
            event.reason.clone(),
            container,
            event.message.clone(),
        ]
    });
    let header = ["  AGE", "TYPE", "REASON", "CONTAINER", "MESSAGE"].map(str::to_owned).to_vec();
    write!(out, "\nEvents:\n{}", layout(header, rows, width))
}
