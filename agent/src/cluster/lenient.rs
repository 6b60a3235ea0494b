//! What the types cannot read, once more without what nobody here needs.
//!
//! Who wrote which field, and when (`managedFields`), is whatever somebody sent that the API server takes: times that we have no type for,
//! and fields without end. One object of that kind must not keep all others from being read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::WatchEvent;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};

use super::{ApiError, Unread, head::Head};

/// What a line of a watch is read as.
#[derive(Debug)]
pub(super) enum Read<K> {
    /// An event.
    Event(WatchEvent<K>),
    /// The beginning of one that is too large or cannot be read.
    Head(Head),
    /// What is no event.
    Broken(ApiError),
}

/// Reads an event again that was not understood. `None` when it does not even say whose object it has.
pub(super) fn event<K: DeserializeOwned>(line: &[u8], why: &serde_json::Error) -> Option<Read<K>> {
    // What was cut off is another matter.
    serde_json::from_slice::<IgnoredAny>(line).ok()?;
    let lean = serde_json::from_slice::<Value>(line).ok().and_then(|mut event| {
        forget_writers(event.get_mut("object")?);
        serde_json::from_value(event).ok()
    });
    if let Some(event) = lean {
        return Some(Read::Event(event));
    }
    let mut head = Head::of(line);
    head.fault = Some(ApiError::of_json(why).to_string());
    let is_of_one = matches!(head.event.as_str(), "ADDED" | "MODIFIED" | "DELETED") && !head.name.is_empty();
    is_of_one.then_some(Read::Head(head))
}

/// A page of a list whose objects were read one by one.
#[derive(Debug)]
pub(super) struct Page<K> {
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<K>,
    pub(super) unread: Vec<Unread>,
}

/// Reads a page again. `None` when it is no list, or an object in it does not say whose it is.
pub(super) fn page<K: DeserializeOwned>(text: &[u8]) -> Option<Page<K>> {
    let mut page: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let metadata = serde_json::from_value(page.remove("metadata")?).ok()?;
    let Some(Value::Array(all)) = page.remove("items") else { return None };
    let (mut items, mut unread) = (Vec::new(), Vec::new());
    for mut item in all {
        forget_writers(&mut item);
        match K::deserialize(&item) {
            Ok(item) => items.push(item),
            Err(why) => {
                let text = json!({ "object": { "metadata": item.get("metadata") } }).to_string();
                let fault = Some(ApiError::of_json(&why).to_string());
                let head = Head { fault, ..Head::of(text.as_bytes()) };
                unread.push(head.object(item.to_string().len())?);
            }
        }
    }
    Some(Page { metadata, items, unread })
}

/// An object that was answered.
pub(super) fn object<K: DeserializeOwned>(mut object: Value) -> Result<K, ApiError> {
    forget_writers(&mut object);
    serde_json::from_value(object).map_err(|error| ApiError::of_json(&error))
}

fn forget_writers(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}
