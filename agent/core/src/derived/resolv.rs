//! resolv.conf of a pod.
//!
//! Source: `pkg/kubelet/network/dns/dns.go`; limits from `pkg/apis/core/validation` (`MaxDNSNameservers`,
//! `MaxDNSSearchPaths`, `MaxDNSSearchListChars`); text as containerd `internal/cri/server` `parseDNSOptions` writes it.
//! Options keep the order in which they were named (the kubelet's is random).

use std::{collections::BTreeSet, fmt::Write as _};

use thiserror::Error;

use crate::{
    config::{DnsSettings, NodeConfig, ResolvConf},
    spec::{DnsConfig, DnsPolicy, NetworkMode, Pod},
};

/// Most name servers that resolvers look at.
pub const NAMESERVERS_MAX: usize = 3;
/// Most search domains.
pub const SEARCHES_MAX: usize = 32;
/// Longest search line in characters.
pub const SEARCH_LINE_MAX: usize = 2048;
/// Search domains that a pod has of its cluster's domain.
const OF_CLUSTER: usize = 3;
/// Longest search domain: more makes some resolvers abort.
const SEARCH_DOMAIN_MAX: usize = 253;
/// Most of a resolv.conf that is read.
const FILE_BYTES_MAX: usize = 10 << 20;

/// DNS settings of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDns {
    /// Name servers.
    pub nameservers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
    /// What had to be left out or replaced, for an event of the pod each.
    pub warnings: Vec<DnsWarning>,
    /// What the node lacks for it, for an event of the node.
    pub node_warning: Option<DnsWarning>,
}

/// Why there is no resolv.conf for a pod: the node's own cannot be used, whatever the pod wants of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ResolvError {
    /// It cannot be read.
    #[error("{why}")]
    Unreadable {
        /// Why not.
        why: String,
    },
    /// A `nameserver` without an address.
    #[error("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")]
    EmptyNameserver,
}

/// Something about a pod's DNS that its owner, or that of the node, should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsWarning {
    /// Reason of the event.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl PodDns {
    /// The content of resolv.conf.
    #[must_use]
    pub fn content(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        if !self.searches.is_empty() {
            let _written = writeln!(text, "search {}", self.searches.join(" "));
        }
        for server in &self.nameservers {
            let _written = writeln!(text, "nameserver {server}");
        }
        if !self.options.is_empty() {
            let _written = writeln!(text, "options {}", self.options.join(" "));
        }
        text
    }
}

/// DNS settings of the pod on this node.
///
/// # Errors
/// When the node's resolv.conf cannot be used.
pub fn of(pod: &Pod, node: &NodeConfig) -> Result<PodDns, ResolvError> {
    let of_node = of_node(&node.dns.node_resolv_conf)?;
    let mut dns = match base(pod) {
        Base::Nothing => PodDns::default(),
        Base::Node => of_node.unwrap_or_else(|| local(node)),
        Base::Cluster if node.dns.cluster_dns.is_empty() => {
            without_cluster(pod, of_node.unwrap_or_else(|| local(node)))
        }
        Base::Cluster => cluster(pod, &node.dns, of_node.unwrap_or_default()),
    };
    // Of a pod without its own, what the node repeats stays (`GetPodDNS` of `pkg/kubelet/network/dns/dns.go`).
    if let Some(extra) = &pod.dns_config {
        append(&mut dns, extra);
    }
    fit(&mut dns);
    Ok(dns)
}

/// What the node's own resolv.conf says, if there is to be one.
fn of_node(file: &ResolvConf) -> Result<Option<PodDns>, ResolvError> {
    match file {
        ResolvConf::Nothing => Ok(None),
        ResolvConf::Text(text) => parse(text).map(Some),
        ResolvConf::Unreadable(why) => Err(ResolvError::Unreadable { why: why.clone() }),
    }
}

/// What pods cannot have of the node's own resolv.conf, or why it cannot be used. Source: `CheckLimitsForResolvConf`.
#[must_use]
pub fn node_limits(dns: &DnsSettings, path: &str) -> Option<String> {
    let searches = match of_node(&dns.node_resolv_conf) {
        Ok(file) => file?.searches,
        Err(ResolvError::Unreadable { why }) => return Some(why),
        Err(ResolvError::EmptyNameserver) => return Some("nameserver list is empty ".to_owned()),
    };
    let count_max = SEARCHES_MAX - if dns.cluster_domain.is_empty() { 0 } else { OF_CLUSTER };
    if searches.len() > count_max {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {count_max} domains!"
        ));
    }
    if searches.iter().any(|domain| domain.len() > SEARCH_DOMAIN_MAX) {
        return Some(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed {SEARCH_DOMAIN_MAX} \
             chars!"
        ));
    }
    if searches.join(" ").len() > SEARCH_LINE_MAX {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {SEARCH_LINE_MAX} \
             chars!"
        ));
    }
    None
}

/// What a resolver does without a file: asks the local machine.
fn local(node: &NodeConfig) -> PodDns {
    let local = |ip: &std::net::IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
    let mut nameservers: Vec<String> = node.ips.iter().map(|ip| local(ip).to_owned()).collect();
    if nameservers.is_empty() {
        nameservers.push("127.0.0.1".to_owned());
    }
    PodDns { nameservers, searches: vec![".".to_owned()], ..PodDns::default() }
}

enum Base {
    Cluster,
    Node,
    Nothing,
}

fn base(pod: &Pod) -> Base {
    match (pod.dns_policy, pod.network) {
        (DnsPolicy::None, _) => Base::Nothing,
        (DnsPolicy::ClusterFirstWithHostNet, _) | (DnsPolicy::ClusterFirst, NetworkMode::Pod) => {
            Base::Cluster
        }
        (DnsPolicy::Default, _) | (DnsPolicy::ClusterFirst, NetworkMode::Node) => Base::Node,
    }
}

fn cluster(pod: &Pod, settings: &DnsSettings, node: PodDns) -> PodDns {
    let domain = &settings.cluster_domain;
    let mut searches = node.searches;
    if !domain.is_empty() {
        let own = [format!("{}.svc.{domain}", pod.name.namespace), format!("svc.{domain}"), domain.clone()];
        searches.splice(0..0, own);
        searches = without_repeats(searches);
    }
    PodDns {
        nameservers: settings.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
        ..PodDns::default()
    }
}

/// Reads a resolv.conf: name servers add up, the last search line counts, a later option replaces an earlier one.
fn parse(text: &str) -> Result<PodDns, ResolvError> {
    let text = &text[..text.floor_char_boundary(FILE_BYTES_MAX)];
    let mut dns = PodDns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                dns.nameservers.push(words.next().ok_or(ResolvError::EmptyNameserver)?.to_owned());
            }
            Some("search") => {
                let domains = words.filter(|domain| *domain != ".");
                dns.searches =
                    domains.map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned()).collect();
            }
            Some("options") => {
                for option in words {
                    set_option(&mut dns.options, option.to_owned());
                }
            }
            Some(_) | None => {}
        }
    }
    Ok(dns)
}

fn append(dns: &mut PodDns, extra: &DnsConfig) {
    dns.nameservers.extend_from_slice(&extra.nameservers);
    dns.nameservers = without_repeats(std::mem::take(&mut dns.nameservers));
    dns.searches.extend_from_slice(&extra.searches);
    dns.searches = without_repeats(std::mem::take(&mut dns.searches));
    for (name, value) in &extra.options {
        let option = match value.as_deref() {
            None | Some("") => name.clone(),
            Some(value) => format!("{name}:{value}"),
        };
        set_option(&mut dns.options, option);
    }
}

fn set_option(options: &mut Vec<String>, option: String) {
    let name =
        |option: &str| option.split_once(':').map_or_else(|| option.to_owned(), |(name, _)| name.to_owned());
    match options.iter_mut().find(|old| name(old) == name(&option)) {
        Some(old) => *old = option,
        None => options.push(option),
    }
}

fn fit(dns: &mut PodDns) {
    if dns.nameservers.len() > NAMESERVERS_MAX {
        dns.nameservers.truncate(NAMESERVERS_MAX);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            dns.nameservers.join(" ")
        );
        dns.warnings.push(DnsWarning { reason: "DNSConfigForming", message });
    }
    let given = dns.searches.len();
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|domain| domain.len() <= SEARCH_DOMAIN_MAX);
    while dns.searches.iter().map(|domain| domain.len() + 1).sum::<usize>() > SEARCH_LINE_MAX + 1 {
        dns.searches.pop();
    }
    if dns.searches.len() < given {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            dns.searches.join(" ")
        );
        dns.warnings.push(DnsWarning { reason: "DNSConfigForming", message });
    }
}

/// DNS of the node in the place of that of the cluster, of which the node knows nothing.
fn without_cluster(pod: &Pod, node: PodDns) -> PodDns {
    const MISSING: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
        \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let warning = |message| DnsWarning { reason: "MissingClusterDNS", message };
    let named = format!("{}_{}({})", pod.name.name, pod.name.namespace, pod.uid);
    PodDns {
        warnings: vec![warning(format!("pod: {named:?}. {MISSING}"))],
        node_warning: Some(warning(MISSING.to_owned())),
        ..node
    }
}

/// Keeps the first of each.
fn without_repeats(values: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

#[cfg(test)]
mod tests;
