//! What can be seen of a pod on its node, as a value.

mod groups;
mod logs;
mod spec;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};

use super::case::TELL;
use super::place::{Place, Side};
use super::plain::Known;
use crate::records::{Records, Task};

/// The lists of a status.
const LISTS: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// What containerd of a node has at one moment.
#[derive(Debug)]
pub struct Containers {
    specs: BTreeMap<String, Value>,
    tasks: Vec<Task>,
}

impl Containers {
    /// Asks it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn of(side: &Side) -> Result<Self> {
        let records = Records::open_at(side.socket)?;
        Ok(Self { specs: records.specs()?, tasks: records.tasks()? })
    }

    /// The process of a container that runs.
    #[must_use]
    pub fn process(&self, id: &str) -> Option<u32> {
        self.tasks.iter().find(|task| task.id == id && task.runs).map(|task| task.pid)
    }
}

/// The status of each container of a pod.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    LISTS.iter().filter_map(|list| pod["status"][*list].as_array()).flatten()
}

/// The id of a container's current run, or of the one before.
#[must_use]
pub fn id_of(status: &Value) -> Option<&str> {
    let ids = ["/containerID", "/state/terminated/containerID", "/lastState/terminated/containerID"];
    let id = ids.iter().find_map(|at| status.pointer(at)?.as_str().filter(|id| !id.is_empty()))?;
    Some(id.split_once("://").map_or(id, |(_, id)| id))
}

/// All but the events of a pod.
///
/// # Errors
/// Something cannot be read.
pub fn whole(side: &Side, pod: &Value, at: &Containers) -> Result<Value> {
    let known = side.known(pod);
    let mut seen = json!({ "status": status(pod, &known), "containers": {} });
    for container in containers(pod) {
        let Some(name) = container["name"].as_str() else { continue };
        let mut of = json!({ "log": logs::read(side, pod, name, &known)? });
        // Of one that has ended the records stay for different times.
        let runs = container["state"]["running"].is_object();
        if let Some(spec) = id_of(container).and_then(|id| at.specs.get(id)).filter(|_| runs) {
            of["spec"] = spec::plain(spec, &declared(pod, name), &known);
            let path = spec.pointer("/linux/cgroupsPath").and_then(Value::as_str).unwrap_or_default();
            of["cgroup"] = groups::read(path)?;
            if let Some((parent, _)) = path.rsplit_once('/') {
                seen["cgroup"] = groups::read(parent)?;
            }
        }
        seen["containers"][name] = of;
    }
    Ok(seen)
}

/// Whether each container that runs has told all that its script tells.
#[must_use]
pub fn has_told(pod: &Value, seen: &Value) -> bool {
    let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][*list].as_array());
    let tells = |one: &&Value| one["command"][2].as_str().is_some_and(|script| script.contains(TELL));
    lists.flatten().filter(tells).filter_map(|one| one["name"].as_str()).all(|name| {
        let of = &seen["containers"][name];
        of["spec"].is_null() || of["log"]["end"].is_array()
    })
}

/// The names of the variables that a container declares itself.
fn declared<'a>(pod: &'a Value, container: &str) -> Vec<&'a str> {
    let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][*list].as_array());
    let of = lists.flatten().filter(|one| one["name"] == container);
    of.filter_map(|one| one["env"].as_array()).flatten().filter_map(|one| one["name"].as_str()).collect()
}

/// The status alone.
#[must_use]
pub fn status(pod: &Value, known: &Known) -> Value {
    known.plain(&pod["status"])
}

/// Takes out how often containers began again, which is where chance has it of those that do so all the time.
pub fn without_restarts(status: &mut Value) {
    for list in LISTS {
        let all = status.get_mut(list).and_then(Value::as_array_mut);
        for one in all.into_iter().flatten() {
            one["restartCount"] = json!("SOME");
        }
    }
}

/// Each event of a pod once: type, reason, field, who tells it, message, and whether it came once or more often.
///
/// # Errors
/// The API server does not answer.
pub fn events(place: &Place, side: &Side) -> Result<BTreeMap<String, Vec<Value>>> {
    let path = format!("/api/v1/namespaces/{}/events?limit=10000", side.namespace);
    let list = place.cluster.get_json(&path)?;
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for event in list["items"].as_array().into_iter().flatten() {
        let uid = event["involvedObject"]["uid"].as_str().unwrap_or_default();
        all.entry(uid.to_owned()).or_default().push(event.clone());
    }
    Ok(all)
}

/// The lines of a pod's events.
#[must_use]
pub fn told(events: &[Value], known: &Known) -> Value {
    let line = |event: &Value| {
        let parts = ["/type", "/reason", "/involvedObject/fieldPath", "/source/component", "/message"];
        let parts = parts.map(|at| event.pointer(at).and_then(Value::as_str).unwrap_or("-"));
        known.plain_text(&parts.join(" | "))
    };
    json!(events.iter().map(line).collect::<BTreeSet<_>>())
}
