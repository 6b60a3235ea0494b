//! What is in an object.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use crate::hidden::Hidden;

/// What is in a ConfigMap or a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// By key. A ConfigMap's `binaryData` is among them: no key is in both.
    pub data: BTreeMap<String, Hidden>,
    /// Keys whose value is binary: a ConfigMap's, which no variable shows.
    pub binary: BTreeSet<String>,
    /// UID of a Secret.
    pub uid: String,
    /// `type` of a Secret.
    pub kind: String,
    /// Whether it never changes.
    pub is_immutable: bool,
}

/// An object with content.
pub(super) trait HasContent {
    fn content(self) -> Content;
}

impl HasContent for ConfigMap {
    /// Of a key that is in both, the text is seen (`MakePayload` of `pkg/volume/configmap/configmap.go` without items shows the
    /// other; the API server lets no key be in both).
    fn content(self) -> Content {
        let mut data: BTreeMap<String, Hidden> = BTreeMap::new();
        let mut binary = BTreeSet::new();
        for (key, bytes) in self.binary_data.into_iter().flatten() {
            binary.insert(key.clone());
            data.insert(key, Hidden::new(bytes.0));
        }
        for (key, text) in self.data.into_iter().flatten() {
            binary.remove(&key);
            data.insert(key, Hidden::new(text.into_bytes()));
        }
        Content {
            data,
            binary,
            uid: String::new(),
            kind: String::new(),
            is_immutable: self.immutable == Some(true),
        }
    }
}

impl HasContent for Secret {
    fn content(self) -> Content {
        let data = self.data.into_iter().flatten().map(|(key, bytes)| (key, Hidden::new(bytes.0))).collect();
        let (uid, kind) = (self.metadata.uid.unwrap_or_default(), self.type_.unwrap_or_default());
        Content { data, binary: BTreeSet::new(), uid, kind, is_immutable: self.immutable == Some(true) }
    }
}
