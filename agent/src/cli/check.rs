//! `berth check-config`: what a configuration means, before it is used.

use std::io::{self, Write};

use crate::config::{Ignored, Origin, Settings, ignored};

/// Writes what was read and what is not acted on.
pub(super) fn print(out: &mut impl Write, settings: &Settings) -> io::Result<()> {
    if settings.documents.files.is_empty() {
        writeln!(out, "no configuration file: everything has its default")?;
    }
    for file in &settings.documents.files {
        writeln!(out, "read {}", file.display())?;
    }
    for file in &settings.containerd.files {
        writeln!(out, "read {}", file.display())?;
    }
    writeln!(out, "\nof the runtime:")?;
    for Origin { setting, value, from } in origins(settings) {
        writeln!(out, "  {setting}: {value}  ({from})")?;
    }
    let ignored = ignored(settings);
    if !ignored.is_empty() {
        writeln!(out, "\nunderstood, but not yet acted on:")?;
    }
    for Ignored { place, name } in &ignored {
        if *place.file == **name { writeln!(out, "  {name}")? } else { writeln!(out, "  {name}  ({place})")? }
    }
    for (of, unread) in
        [("--node-ip", settings.unread_node_ips()), ("clusterDNS", settings.unread_cluster_dns())]
    {
        if !unread.is_empty() {
            writeln!(out, "\nno address, and left out of {of}: {}", unread.join(", "))?;
        }
    }
    let left_out = settings.left_out_of_tls();
    if !left_out.is_empty() {
        writeln!(out, "\nnot there, and left out of TLS: {}", left_out.join(", "))?;
    }
    writeln!(out, "\nthe configuration is good")
}

fn origins(settings: &Settings) -> Vec<Origin> {
    settings.runtime_source().origins(&settings.containerd)
}

/// The configuration with every default.
pub(super) fn json(settings: &Settings) -> serde_json::Value {
    let files: Vec<_> = settings.documents.files.iter().map(|file| file.display().to_string()).collect();
    let ignored: Vec<_> = ignored(settings).into_iter().map(|ignored| ignored.name).collect();
    let runtime: Vec<_> = origins(settings)
        .into_iter()
        .map(|Origin { setting, value, from }| serde_json::json!({ "setting": setting, "value": value, "from": from }))
        .collect();
    let containerd: Vec<_> =
        settings.containerd.files.iter().map(|file| file.display().to_string()).collect();
    serde_json::json!({
        "files": files,
        "containerdFiles": containerd,
        "runtime": runtime,
        "kubeletConfiguration": settings.kubelet,
        "berthConfiguration": settings.berth,
        "notActedOn": ignored,
    })
}
