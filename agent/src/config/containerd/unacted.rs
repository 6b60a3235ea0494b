//! What CRI's section may say and the agent does not act on, so that nobody believes in a setting that does nothing.
//!
//! Only what pods can tell: where CRI itself listens, and how it counts, is nothing to a node without it. What is written as
//! it is by default is passed over, since `containerd config default` writes everything.

use toml::Value;

use super::tree::{Said, Tree};

/// A value that is containerd's own.
enum Default {
    /// Of its kind: no, nothing, none.
    Empty,
    Yes,
    Number(i64),
    Text(&'static str),
    Texts(&'static [&'static str]),
}

impl Default {
    fn is(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Yes, Value::Boolean(value)) => *value,
            (Self::Number(default), Value::Integer(value)) => default == value,
            (Self::Text(default), Value::String(value)) => value.is_empty() || value == default,
            (Self::Texts(default), Value::Array(value)) => {
                value.len() == default.len()
                    && value.iter().zip(*default).all(|(one, other)| one.as_str() == Some(*other))
            }
            (Self::Empty, Value::Boolean(value)) => !value,
            (Self::Empty, Value::Integer(value)) => *value == 0,
            (Self::Empty, Value::String(value)) => value.is_empty(),
            (Self::Empty, Value::Array(value)) => value.is_empty(),
            _ => false,
        }
    }
}

/// Of running.
const RUNTIME: [(&[&str], Default); 16] = [
    // No device of a plugin reaches a pod yet.
    (&["cdi_spec_dirs"], Default::Texts(&["/etc/cdi", "/var/run/cdi"])),
    (&["cni", "ip_pref"], Default::Empty),
    (&["cni", "max_conf_num"], Default::Number(1)),
    (&["containerd", "ignore_blockio_not_enabled_errors"], Default::Empty),
    (&["containerd", "ignore_rdt_not_enabled_errors"], Default::Empty),
    (&["device_ownership_from_security_context"], Default::Empty),
    (&["disable_hugetlb_controller"], Default::Yes),
    (&["disable_proc_mount"], Default::Empty),
    (&["enable_unprivileged_icmp"], Default::Yes),
    (&["enable_unprivileged_ports"], Default::Yes),
    (&["ignore_image_defined_volumes"], Default::Empty),
    (&["max_container_log_line_size"], Default::Number(16384)),
    (&["netns_mounts_under_state_dir"], Default::Empty),
    (&["restrict_oom_score_adj"], Default::Empty),
    (&["tolerate_missing_hugetlb_controller"], Default::Yes),
    (&["unset_seccomp_profile"], Default::Empty),
];

/// Of images.
const IMAGES: [(&[&str], Default); 12] = [
    (&["concurrent_layer_fetch_buffer"], Default::Empty),
    (&["disable_snapshot_annotations"], Default::Yes),
    (&["discard_unpacked_layers"], Default::Empty),
    (&["image_decryption", "key_model"], Default::Text("node")),
    (&["image_pull_progress_timeout"], Default::Text("5m0s")),
    (&["image_pull_with_sync_fs"], Default::Empty),
    (&["max_concurrent_downloads"], Default::Number(3)),
    (&["registry", "auths"], Default::Empty),
    (&["registry", "configs"], Default::Empty),
    (&["registry", "headers"], Default::Empty),
    (&["registry", "mirrors"], Default::Empty),
    (&["runtime_platforms"], Default::Empty),
];

/// Of each handler.
const HANDLER: [(&[&str], Default); 7] = [
    (&["base_runtime_spec"], Default::Empty),
    (&["cgroup_writable"], Default::Empty),
    (&["cni_conf_dir"], Default::Empty),
    (&["cni_max_conf_num"], Default::Empty),
    (&["io_type"], Default::Text("fifo")),
    (&["sandboxer"], Default::Text("podsandbox")),
    (&["snapshotter"], Default::Empty),
];

/// Of the options of each handler of runc; those of others are passed on whole.
const RUNC_OPTIONS: [(&[&str], Default); 7] = [
    (&["options", "CriuImagePath"], Default::Empty),
    (&["options", "CriuWorkPath"], Default::Empty),
    (&["options", "IoGid"], Default::Empty),
    (&["options", "IoUid"], Default::Empty),
    (&["options", "NoNewKeyring"], Default::Empty),
    (&["options", "Root"], Default::Empty),
    (&["options", "ShimCgroup"], Default::Empty),
];

/// Each that is said, by the name of the field.
pub(super) fn found(runtime: &Tree, images: &Tree) -> Vec<Said<String>> {
    let mut found = Vec::new();
    look(runtime, "", &RUNTIME, &mut found);
    let handlers = runtime.get(&["containerd", "runtimes"]).and_then(Tree::entries);
    for (name, handler) in handlers.into_iter().flatten() {
        let at = format!("containerd.runtimes.{name}.");
        look(handler, &at, &HANDLER, &mut found);
        let kind = handler.get(&["runtime_type"]).and_then(Tree::leaf).and_then(|said| said.value.as_str());
        if kind.is_none_or(|kind| kind == "io.containerd.runc.v2") {
            look(handler, &at, &RUNC_OPTIONS, &mut found);
        }
    }
    look(images, "images: ", &IMAGES, &mut found);
    found
}

fn look(tree: &Tree, at: &str, fields: &[(&[&str], Default)], found: &mut Vec<Said<String>>) {
    for (path, default) in fields {
        let Some(said) = tree.get(path) else { continue };
        let is_default = match said {
            Tree::Leaf(said) => default.is(&said.value),
            Tree::Table(entries) => entries.is_empty(),
        };
        let file = said.files().pop_first();
        if let Some(file) = file.filter(|_| !is_default) {
            found.push(Said { value: format!("{at}{}", path.join(".")), file });
        }
    }
}
