//! What objects and services give a container's environment. Source: `makeEnvironmentVariables` of
//! `pkg/kubelet/kubelet_pods.go`.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    derived::references::{OfObject, of_environment},
    oci::ObjectValues,
    spec::{Container, ObjectKeyRef, ObjectKind, Pod, Source},
};
use futures::stream::{FuturesOrdered, StreamExt as _};

use super::{
    Content, ObjectError, Objects,
    asked::{ask_more, read},
    services,
};

/// Most bytes that a container's environment has of objects and services: more than the kernel lets a program begin with
/// (execve(2)).
const BYTES_MAX: usize = 8 << 20;
/// What a variable counts beside its name and value: about what it takes in memory, which bounds their number as well.
const VARIABLE_BYTES: usize = 128;

/// Reads what the environment of a container needs of the API server.
///
/// # Errors
/// The first thing that is missing.
pub async fn environment(
    objects: &Objects,
    pod: &Pod,
    container: &Container,
) -> Result<ObjectValues, ObjectError> {
    let mut values = ObjectValues { services: links(objects, pod).await?, ..ObjectValues::default() };
    let mut left = BYTES_MAX;
    let mut take = |text_bytes: usize| -> Result<(), ObjectError> {
        let too_large = ObjectError::EnvironmentTooLarge { max: BYTES_MAX, each: VARIABLE_BYTES };
        left = left.checked_sub(VARIABLE_BYTES + text_bytes).ok_or(too_large)?;
        Ok(())
    };
    for (name, value) in &values.services {
        take(name.len() + value.len())?;
    }
    let (mut variables, mut asked) = (of_environment(container), FuturesOrdered::new());
    loop {
        ask_more(&mut asked, variables.by_ref().map(|variable| ask(objects, pod, variable)));
        let Some((variable, found)) = asked.next().await else { return Ok(values) };
        let found = found?;
        match variable {
            OfObject::All(from) => {
                let Some(content) = found else { continue };
                for key in content.data.keys() {
                    let value = text(&content, key);
                    // What no variable shows is looked at all the same.
                    take(from.prefix.len() + key.len() + value.as_ref().map_or(0, String::len))?;
                    values.from.extend(value.map(|value| (format!("{}{key}", from.prefix), value)));
                }
            }
            OfObject::Key(index, variable, wanted) => {
                match found.and_then(|content| text(&content, &wanted.key)) {
                    Some(value) => {
                        take(variable.name.len() + value.len())?;
                        values.keys.insert(index, value);
                    }
                    None if wanted.optional => {}
                    None => return Err(no_key(pod, wanted)),
                }
            }
        }
    }
}

async fn ask<'a>(
    objects: &Objects,
    pod: &Pod,
    variable: OfObject<'a>,
) -> (OfObject<'a>, Result<Option<Arc<Content>>, ObjectError>) {
    (variable, read(objects, pod, variable.object()).await)
}

fn no_key(pod: &Pod, wanted: &ObjectKeyRef) -> ObjectError {
    ObjectError::NoKey {
        key: wanted.key.clone(),
        kind: match wanted.kind {
            ObjectKind::ConfigMap => "ConfigMap",
            ObjectKind::Secret => "Secret",
        },
        object: format!("{}/{}", pod.name.namespace, wanted.name),
    }
}

async fn links(objects: &Objects, pod: &Pod) -> Result<BTreeMap<String, String>, ObjectError> {
    let Some(lists) = objects.lists() else { return Ok(BTreeMap::new()) };
    let list = if pod.service_links { &lists.services } else { &lists.master };
    let all = match pod.source {
        Source::Api => list.get(&pod.uid).await.ok_or(ObjectError::NoServices)?,
        // The API server that they tell of may run in this very pod: it has what is known, and waits for nothing.
        Source::File | Source::Http => list.known().unwrap_or_default(),
    };
    let known = all.iter().filter_map(|(key, link)| Some((key, link.as_ref().as_ref()?)));
    Ok(services::variables(known, &pod.name.namespace, pod.service_links))
}

/// Binary data of a ConfigMap is for volumes alone. What is no UTF-8 is shown as in Go's JSON, which the OCI spec is written in.
fn text(content: &Content, key: &str) -> Option<String> {
    let value = content.data.get(key)?;
    (!content.binary.contains(key)).then(|| String::from_utf8_lossy(value.reveal()).into_owned())
}

#[cfg(test)]
mod tests;
