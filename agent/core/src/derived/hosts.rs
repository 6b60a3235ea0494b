//! `/etc/hosts` of a pod.
//!
//! Source: `pkg/kubelet/kubelet_pods.go` `managedHostsFileContent`, `nodeHostsFileContent`: tools and tests compare the
//! header.

use std::{fmt::Write as _, net::IpAddr};

use crate::{
    config::NodeConfig,
    derived::hostname::HostNames,
    spec::{HostAlias, NetworkMode, Pod},
};

const LOCAL: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// Content of the managed file; `None` when the pod has its own network but no address, and so no managed file.
#[must_use]
pub fn content(pod: &Pod, node: &NodeConfig, names: &HostNames, ips: &[IpAddr]) -> Option<String> {
    let mut text = match pod.network {
        NetworkMode::Node => {
            format!("# Kubernetes-managed hosts file (host network).\n{}", node.dns.node_hosts)
        }
        NetworkMode::Pod if ips.is_empty() => return None,
        NetworkMode::Pod => {
            let own = own_names(names);
            let mut text = format!("# Kubernetes-managed hosts file.\n{LOCAL}");
            for ip in ips {
                // Writing to a String cannot fail.
                let _written = writeln!(text, "{ip}\t{own}");
            }
            text
        }
    };
    append_aliases(&mut text, &pod.host_aliases);
    Some(text)
}

fn own_names(HostNames { hostname, domain }: &HostNames) -> String {
    if domain.is_empty() { hostname.clone() } else { format!("{hostname}.{domain}\t{hostname}") }
}

fn append_aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let _written = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
    }
}

#[cfg(test)]
mod tests;
