//! The pods' network: bridge, host-local and portmap.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::files;
use crate::vm::{self, Feature};

/// The bridge on the node.
pub const BRIDGE: &str = "berth0";
/// Addresses of pods.
pub const SUBNET: &str = "10.88.0.0/16";
/// Name of the network.
pub const NETWORK: &str = "lab";

/// The network as a list of plugins; `leases` is where host-local keeps its addresses. In a guest without address
/// translation it has neither masquerading nor host ports.
#[must_use]
pub fn network(leases: &Path) -> Value {
    let translates = !vm::lacks(Feature::Nat);
    let mut plugins = vec![json!({
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": true,
        "ipMasq": translates,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": leases,
            "ranges": [[{ "subnet": SUBNET }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    })];
    if translates {
        plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    }
    json!({ "cniVersion": "1.0.0", "name": NETWORK, "plugins": plugins })
}

/// Writes a configuration into a directory, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write(conf_dir: &Path, network: &Value) -> Result<()> {
    files::make_dir(conf_dir)?;
    let part = conf_dir.join("10-lab.conflist.part");
    files::write(&part, network.to_string())?;
    fs::rename(&part, conf_dir.join("10-lab.conflist")).with_context(|| format!("rename {}", part.display()))
}
