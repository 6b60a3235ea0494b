//! Host name of a pod.
//!
//! Source: `pkg/kubelet/kubelet_pods.go` `GeneratePodHostNameAndDomain`, `pkg/kubelet/util/util.go`
//! `GetNodenameForKernel`.

use thiserror::Error;

use crate::{
    config::NodeConfig,
    spec::{NetworkMode, Pod},
};

/// Longest label: what the kernel's node name holds, less its terminating zero.
const LABEL_BYTES_MAX: usize = 63;
/// Longest fully qualified name that the kernel's node name holds.
const FQDN_BYTES_MAX: usize = 64;

/// Why a pod can have no host name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostnameError {
    /// Nothing is left of the name after it was cut.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Empty {
        /// Name of the pod.
        pod: String,
        /// The name that was asked for.
        hostname: String,
    },
    /// `hostname` or `subdomain` is no DNS label.
    #[error("pod {field} {value:?} is not a valid DNS label")]
    NotALabel {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: String,
    },
    /// `setHostnameAsFQDN` with a name that the kernel cannot hold.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         ({FQDN_BYTES_MAX} characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong {
        /// The name.
        fqdn: String,
    },
}

/// Short name and domain of a pod, for `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNames {
    /// The short name.
    pub hostname: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`, or empty.
    pub domain: String,
}

/// What the kernel's node name in the pod is to be: empty for a pod in the node's network, which has the node's own.
///
/// # Errors
///
/// When the pod asks for a name that cannot be given.
pub fn of(pod: &Pod, node: &NodeConfig) -> Result<String, HostnameError> {
    match pod.network {
        NetworkMode::Node => return Ok(String::new()),
        NetworkMode::Pod => {}
    }
    let HostNames { hostname, domain } = names(pod, node)?;
    if domain.is_empty() || !pod.hostname_as_fqdn {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > FQDN_BYTES_MAX {
        return Err(HostnameError::FqdnTooLong { fqdn });
    }
    Ok(fqdn)
}

/// Short name and domain of the pod.
///
/// # Errors
///
/// When the pod asks for a name that cannot be given.
pub fn names(pod: &Pod, node: &NodeConfig) -> Result<HostNames, HostnameError> {
    if let Some(name) = &pod.hostname_override {
        let hostname = truncated(name).to_owned();
        return Ok(HostNames { hostname, domain: String::new() });
    }
    let wanted = match pod.hostname.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => label("Hostname", name)?,
        None => &pod.name.name,
    };
    let hostname = truncated(wanted);
    if hostname.is_empty() {
        return Err(HostnameError::Empty { pod: pod.name.name.clone(), hostname: wanted.to_owned() });
    }
    let domain = match pod.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(subdomain) => {
            let subdomain = label("Subdomain", subdomain)?;
            format!("{subdomain}.{}.svc.{}", pod.name.namespace, node.dns.cluster_domain)
        }
        None => String::new(),
    };
    Ok(HostNames { hostname: hostname.to_owned(), domain })
}

/// Cut to a label's length; what is cut must not end in a separator.
fn truncated(name: &str) -> &str {
    if name.len() <= LABEL_BYTES_MAX {
        return name;
    }
    name[..name.floor_char_boundary(LABEL_BYTES_MAX)].trim_end_matches(['-', '.'])
}

fn label<'a>(field: &'static str, value: &'a str) -> Result<&'a str, HostnameError> {
    let bytes = value.as_bytes();
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let valid = bytes.len() <= LABEL_BYTES_MAX
        && bytes.first().is_some_and(letter)
        && bytes.last().is_some_and(letter)
        && bytes.iter().all(|byte| letter(byte) || *byte == b'-');
    if valid { Ok(value) } else { Err(HostnameError::NotALabel { field, value: value.to_owned() }) }
}

#[cfg(test)]
mod tests;
