//! Pods of the API server, which has checked them and applied its defaults.

use std::collections::BTreeMap;

use berth_core::spec::Source;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as ApiPod;

use super::read::{Manifest, convert};
use crate::document::{Faults, Node, Place, Value};

/// Makes a pod of one that the API server gave, and `seen` first then. What nobody here needs of it is left out: who wrote which field,
/// and its status but for how it ended.
///
/// # Errors
/// What of it this node cannot do.
pub fn api_pod(given: &ApiPod, seen: Timestamp) -> Result<Manifest, Faults> {
    let mut written = given.clone();
    let metadata = &mut written.metadata;
    metadata.managed_fields = None;
    metadata.resource_version = None;
    let annotations = metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert("kubernetes.io/config.source".to_owned(), Source::Api.as_str().to_owned());
    annotations.insert("kubernetes.io/config.seen".to_owned(), seen.to_string());
    let place = Place { file: "api".into(), line: 0 };
    let nowhere = Node { place, value: Value::Null };
    let status = written.status.take();
    let mut manifest = convert(&nowhere, &written, Source::Api)?;
    if let Some(pod) = std::sync::Arc::get_mut(&mut manifest.pod) {
        pod.ended = super::pod::ended(status.as_ref());
    }
    Ok(manifest)
}
