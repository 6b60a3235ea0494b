//! Digests of manifests, over a canonical form: fields in the order of their names, maps in the order of their keys,
//! absent and empty told apart, nothing of how the file was laid out.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use sha2::{Digest, Sha256};

/// FNV-1a, 64 bits, of name and image: what makes a running container be replaced. Other changes under one UID wait for
/// its next run. Source: `pickFieldsToHash` of `pkg/kubelet/container/helpers.go`.
pub(super) fn of_container(container: &Container) -> u64 {
    fnv1a(format!("{}\0{}", container.name, container.image.as_deref().unwrap_or_default()).as_bytes())
}

/// UID of a static pod that names none: 32 hexadecimal digits over the manifest, the node and the file.
///
/// The kubelet takes the FNV-1a of 128 bits of the same three (`pkg/kubelet/config/common.go`), but hashes a dump of Go's own memory
/// layout, which nobody else can make: the form and the meaning are the same here, the digits are not.
pub(super) fn static_uid(pod: &Pod, node: &str, file: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(canonical(pod));
    hash.update(format!("\0host:{node}\0file:{file}"));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn canonical<T: serde::Serialize>(value: &T) -> Vec<u8> {
    // Only maps with keys that are no strings cannot be written, and the API has none.
    let tree = serde_json::to_value(value).unwrap_or_default();
    sorted(tree).to_string().into_bytes()
}

/// With the keys of every map in order, whichever map `serde_json` was built with.
fn sorted(tree: serde_json::Value) -> serde_json::Value {
    match tree {
        serde_json::Value::Object(fields) => {
            let ordered: BTreeMap<_, _> =
                fields.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            serde_json::Value::Object(ordered.into_iter().collect())
        }
        serde_json::Value::Array(items) => serde_json::Value::Array(items.into_iter().map(sorted).collect()),
        scalar => scalar,
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_gives_its_published_values() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn the_hash_of_a_container_is_stable() {
        let container =
            Container { name: "web".to_owned(), image: Some("nginx:1".to_owned()), ..Container::default() };
        // A change of this number restarts containers of nodes that update Berth: think twice.
        assert_eq!(of_container(&container), 1_946_308_108_189_761_092);
        let other = Container { tty: Some(true), ..container.clone() };
        assert_eq!(of_container(&container), of_container(&other), "waits for the next run");
        let other = Container { image: Some("nginx:2".to_owned()), ..container.clone() };
        assert_ne!(of_container(&container), of_container(&other));
    }
}
