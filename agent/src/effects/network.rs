//! Network namespaces of pods and their wiring.

use std::{path::PathBuf, sync::Arc};

use berth_cni::{
    Attachment, Bandwidth, CapabilityArgs, DnsConfig, PodIdentity, PortMapping, Protocol as CniProtocol,
};
use berth_core::{
    config::NodeConfig,
    derived::{network, resolv},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::SandboxId,
    paths,
    pod::port::network::{NetnsRequest, NetworkRequest},
    spec::{Pod, Protocol},
};

use super::{
    failure::failed,
    host::{Host, blocking},
};
use crate::{network::NetworkError, quantity::Quantity};

/// Makes the pod's network namespace, with `lo` up.
pub(super) async fn ensure_netns(host: &Arc<Host>, request: &NetnsRequest) -> Result<Outcome, Failure> {
    let NetnsRequest { sandbox, ids } = request.clone();
    host.network.claim(&sandbox).await;
    let namespaces = host.network.namespaces().clone();
    blocking(move || {
        namespaces.ensure(&sandbox, ids).map_err(|error| failed(FailureKind::Transient, &error))?;
        Ok(Outcome::Netns(PathBuf::from(paths::netns(&sandbox))))
    })
    .await
}

/// Removes it. A sandbox whose pod is unknown may still be attached, with nobody else to detach it.
pub(super) async fn remove_netns(host: &Arc<Host>, sandbox: &SandboxId) -> Result<Outcome, Failure> {
    host.network.ensure_detached(sandbox).await.map_err(failure)?;
    let (namespaces, id) = (host.network.namespaces().clone(), sandbox.clone());
    blocking(move || namespaces.remove(&id).map_err(|error| failed(FailureKind::Transient, &error))).await?;
    host.network.forget(sandbox);
    Ok(Outcome::Done)
}

/// Wires the pod, or finds it wired.
pub(super) async fn ensure(host: &Arc<Host>, request: &NetworkRequest) -> Result<Outcome, Failure> {
    let attachment = attachment(host, request)?;
    let status = host.network.attach(attachment).await.map_err(failure)?;
    Ok(Outcome::Network(status))
}

/// Undoes the wiring. What it was wired with is recorded: the pod may ask for something else by now, and for what nobody can have.
pub(super) async fn remove(host: &Arc<Host>, sandbox: &SandboxId) -> Result<Outcome, Failure> {
    host.network.detach(sandbox).await.map_err(failure)?;
    Ok(Outcome::Done)
}

fn failure(error: NetworkError) -> Failure {
    let kind = match &error {
        NetworkError::Cni(cni) if cni.is_timeout() => FailureKind::Unknown,
        NetworkError::Attachment(_) | NetworkError::Id(_) => FailureKind::Config,
        NetworkError::Cni(_)
        | NetworkError::Load(_)
        | NetworkError::Make(_)
        | NetworkError::Netns(_)
        | NetworkError::NoAddress(_)
        | NetworkError::Orphan { .. }
        | NetworkError::Records(_)
        | NetworkError::Unanswered(_)
        | NetworkError::Stopping => FailureKind::Transient,
    };
    failed(kind, &error)
}

fn attachment(host: &Host, request: &NetworkRequest) -> Result<Attachment, Failure> {
    let NetworkRequest { sandbox, pod } = request;
    let identity =
        PodIdentity { namespace: &pod.name.namespace, name: &pod.name.name, uid: pod.uid.as_str() };
    let attachment = Attachment::for_pod(identity, sandbox.as_str(), paths::netns(sandbox), 0)
        .map_err(|error| failed(FailureKind::Config, &error))?;
    let settings = &host.node().cgroups;
    let capabilities = CapabilityArgs::new()
        .port_mappings(&port_mappings(request))
        .bandwidth(bandwidth(request)?)
        .dns(&dns(pod, host.node()))
        .cgroup_path(&berth_core::cgroup::names::pod(settings, pod.qos, &pod.uid))
        .pod_annotations(&pod.annotations);
    Ok(attachment.with_capabilities(capabilities))
}

/// What the pod's own `/etc/resolv.conf` says. What is wired, or goes, was told when it was made.
fn dns(pod: &Pod, node: &NodeConfig) -> DnsConfig {
    let dns = resolv::of(pod, node).unwrap_or_default();
    DnsConfig { servers: dns.nameservers, searches: dns.searches, options: dns.options }
}

fn port_mappings(request: &NetworkRequest) -> Vec<PortMapping> {
    let mappings = network::port_mappings(&request.pod).into_iter().map(|mapping| PortMapping {
        host_port: mapping.host_port,
        container_port: mapping.container_port,
        protocol: match mapping.protocol {
            Protocol::Tcp => CniProtocol::Tcp,
            Protocol::Udp => CniProtocol::Udp,
            Protocol::Sctp => CniProtocol::Sctp,
        },
        host_ip: mapping.host_ip.parse().ok(),
    });
    mappings.collect()
}

fn bandwidth(request: &NetworkRequest) -> Result<Bandwidth, Failure> {
    let limits =
        network::bandwidth(&request.pod, quantity).map_err(|error| failed(FailureKind::Config, &error))?;
    Ok(limits.map_or_else(Bandwidth::default, |limits| Bandwidth {
        ingress: limits.ingress_rate,
        egress: limits.egress_rate,
    }))
}

/// Bits per second of a quantity such as `10M`.
fn quantity(text: &str) -> Option<u64> {
    let rate: Quantity = text.parse().ok()?;
    u64::try_from(rate.units()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_cni::{
        AttachmentError, CniError, ContainerId, LoadError, NetworkName, PluginFailure, PluginType, Verb,
    };
    use berth_core::{config::ResolvConf, id::PodUid, spec::Source};

    use super::*;
    use crate::{
        config::tests::{facts, load_text},
        netns::NetnsError,
    };

    fn by_plugin(source: PluginFailure) -> NetworkError {
        let (network, plugin) = (NetworkName::new("pods").unwrap(), PluginType::new("bridge").unwrap());
        CniError::Plugin { verb: Verb::Add, network, plugin, source }.into()
    }

    fn busy() -> NetworkError {
        let network = NetworkName::new("pods").unwrap();
        CniError::Busy { verb: Verb::Del, container_id: "c".to_owned(), network }.into()
    }

    #[test]
    fn what_may_have_been_done_is_told_from_what_was_not_and_from_what_never_will_be() {
        let name = || ContainerId::new("/").unwrap_err();
        let after = Duration::from_secs(220);
        for (error, kind) in [
            (by_plugin(PluginFailure::TimedOut { after }), FailureKind::Unknown),
            (busy(), FailureKind::Unknown),
            (by_plugin(PluginFailure::TooMuchOutput { max: 1 }), FailureKind::Transient),
            (NetworkError::Load(LoadError::NoConfig("/etc/cni/net.d".into())), FailureKind::Transient),
            (NetworkError::Netns(NetnsError::Foreign("/run/netns/x".into())), FailureKind::Transient),
            (
                NetworkError::Orphan {
                    sandbox: SandboxId::of(&PodUid::new("u"), 0),
                    process: "7".to_owned(),
                },
                FailureKind::Transient,
            ),
            (NetworkError::Stopping, FailureKind::Transient),
            (NetworkError::Attachment(AttachmentError::Name(name())), FailureKind::Config),
            (NetworkError::Id(name()), FailureKind::Config),
        ] {
            let said = error.to_string();
            let failure = failure(error);
            assert_eq!(failure.kind, kind, "{said}");
            assert!(failure.message.starts_with(&said), "{}", failure.message);
        }
    }

    fn pod(spec: &str) -> Arc<Pod> {
        let text = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{{spec}}}}}");
        let seen = jiff::Timestamp::UNIX_EPOCH;
        let origin = crate::manifest::Origin { source: Source::File, place: "web.yaml", node: "node", seen };
        let [manifest] = crate::manifest::read(&text, &origin).unwrap().try_into().unwrap();
        manifest.pod
    }

    #[test]
    fn plugins_are_told_the_dns_of_the_pod() {
        const OWN: &str =
            "dnsConfig: {nameservers: [203.0.113.9], searches: [own.test], options: [{name: edns0}]}, ";
        let settings = load_text("clusterDNS: [10.96.0.10]\nclusterDomain: cluster.test\n", &[]).unwrap();
        let mut node = settings.resolve(&facts()).unwrap().node;
        let of_node = "nameserver 192.0.2.53\nsearch node.test\noptions timeout:1\n";
        let cluster = ["default.svc.cluster.test", "svc.cluster.test", "cluster.test", "node.test"];
        let with_own = [&cluster[..], &["own.test"]].concat();
        let unreadable = ResolvConf::Unreadable("no".to_owned());
        let readable = ResolvConf::Text(of_node.to_owned());
        for (file, spec, servers, searches, options) in [
            (&readable, "", &["10.96.0.10"][..], &cluster[..], &["ndots:5"][..]),
            (&readable, "dnsPolicy: Default, ", &["192.0.2.53"], &["node.test"], &["timeout:1"]),
            (&readable, &format!("dnsPolicy: None, {OWN}"), &["203.0.113.9"], &["own.test"], &["edns0"]),
            (&readable, OWN, &["10.96.0.10", "203.0.113.9"], &with_own, &["ndots:5", "edns0"]),
            // No sandbox is made then: the pod goes.
            (&unreadable, "", &[], &[], &[]),
        ] {
            node.dns.node_resolv_conf = file.clone();
            let told = dns(&pod(&format!("{spec}containers: [{{name: c, image: i}}]")), &node);
            let all = [&told.servers, &told.searches, &told.options];
            assert_eq!(all.map(Vec::as_slice), [servers, searches, options], "{file:?} {spec:?}");
        }
    }

    #[test]
    fn a_port_of_the_node_is_mapped_with_its_address_and_protocol() {
        let ports = [
            (CniProtocol::Tcp, "", "TCP", None),
            (CniProtocol::Udp, "hostIP: 127.0.0.1, ", "UDP", Some("127.0.0.1")),
            (CniProtocol::Sctp, "hostIP: '::1', ", "SCTP", Some("::1")),
        ];
        let listed = ports.map(|(_, address, protocol, _)| {
            format!("{{hostPort: 8080, {address}containerPort: 80, protocol: {protocol}}}")
        });
        let pod = pod(&format!("containers: [{{name: c, image: i, ports: [{}]}}]", listed.join(", ")));
        let request = NetworkRequest { sandbox: SandboxId::of(&pod.uid, 0), pod };
        let expected = ports.map(|(protocol, _, _, address)| PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol,
            host_ip: address.map(|address| address.parse().unwrap()),
        });
        assert_eq!(port_mappings(&request), expected);
    }
}
