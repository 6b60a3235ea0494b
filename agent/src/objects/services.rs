//! Services as variables of containers. Source: `pkg/kubelet/envvars/envvars.go`, `getServiceEnvVarMap` of
//! `pkg/kubelet/kubelet_pods.go`.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Service;

/// The service of the API server: every pod knows of it.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// What of a service containers are told. None where it has no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    ip: String,
    ports: Vec<(Option<String>, i32, String)>,
}

/// What is kept of a service.
pub(super) fn link(service: Service) -> Option<Link> {
    let spec = service.spec?;
    // Also `None` and nothing at all are no addresses.
    let ip = spec.cluster_ip.filter(|ip| ip.parse::<IpAddr>().is_ok())?;
    let ports = spec.ports.into_iter().flatten().map(|port| {
        let protocol = port.protocol.filter(|protocol| !protocol.is_empty());
        (port.name.filter(|name| !name.is_empty()), port.port, protocol.unwrap_or_else(|| "TCP".to_owned()))
    });
    let ports: Vec<_> = ports.collect();
    (!ports.is_empty()).then_some(Link { ip, ports })
}

/// The variables of a pod: of the services of its namespace where it asks for links, and of the API server's.
pub(super) fn variables<'a>(
    services: impl Iterator<Item = (&'a (String, String), &'a Link)>,
    namespace: &str,
    with_links: bool,
) -> BTreeMap<String, String> {
    let mut seen: BTreeMap<&str, &Link> = BTreeMap::new();
    let mut master = None;
    for ((of, name), link) in services {
        if (of.as_str(), name.as_str()) == MASTER {
            master = Some(link);
        } else if with_links && of == namespace {
            seen.insert(name, link);
        }
    }
    if let Some(link) = master {
        // One of that name in the pod's own namespace goes before it.
        seen.entry(MASTER.1).or_insert(link);
    }
    seen.into_iter().flat_map(|(name, link)| of_service(name, link)).collect()
}

fn of_service(name: &str, Link { ip, ports }: &Link) -> Vec<(String, String)> {
    let upper = |text: &str| text.replace('-', "_").to_uppercase();
    let prefix = upper(name);
    let mut all = vec![(format!("{prefix}_SERVICE_HOST"), ip.clone())];
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    for (index, (name, port, protocol)) in ports.iter().enumerate() {
        let address = format!("{}://{host}:{port}", protocol.to_lowercase());
        if index == 0 {
            all.push((format!("{prefix}_SERVICE_PORT"), port.to_string()));
            all.push((format!("{prefix}_PORT"), address.clone()));
        }
        if let Some(name) = name {
            all.push((format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.to_string()));
        }
        let of_port = format!("{prefix}_PORT_{port}_{}", protocol.to_uppercase());
        all.push((format!("{of_port}_PROTO"), protocol.to_lowercase()));
        all.push((format!("{of_port}_PORT"), port.to_string()));
        all.push((format!("{of_port}_ADDR"), ip.clone()));
        all.push((of_port, address));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value) -> Option<Link> {
        let whole = json!({"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": spec});
        link(serde_json::from_value(whole).unwrap())
    }

    fn shown(services: &[(&str, &str, Value)], namespace: &str, with_links: bool) -> Vec<String> {
        let all: BTreeMap<(String, String), Link> = services
            .iter()
            .filter_map(|(of, name, spec)| Some((((*of).to_owned(), (*name).to_owned()), service(spec)?)))
            .collect();
        variables(all.iter(), namespace, with_links)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_service_has_the_variables_that_docker_gave_it() {
        let spec = json!({"clusterIP": "10.0.0.7", "ports": [
            {"name": "http", "port": 80}, {"name": "dns-tcp", "port": 53, "protocol": "UDP"}]});
        assert_eq!(
            shown(&[("shop", "my-web", spec)], "shop", true),
            [
                "MY_WEB_PORT=tcp://10.0.0.7:80",
                "MY_WEB_PORT_53_UDP=udp://10.0.0.7:53",
                "MY_WEB_PORT_53_UDP_ADDR=10.0.0.7",
                "MY_WEB_PORT_53_UDP_PORT=53",
                "MY_WEB_PORT_53_UDP_PROTO=udp",
                "MY_WEB_PORT_80_TCP=tcp://10.0.0.7:80",
                "MY_WEB_PORT_80_TCP_ADDR=10.0.0.7",
                "MY_WEB_PORT_80_TCP_PORT=80",
                "MY_WEB_PORT_80_TCP_PROTO=tcp",
                "MY_WEB_SERVICE_HOST=10.0.0.7",
                "MY_WEB_SERVICE_PORT=80",
                "MY_WEB_SERVICE_PORT_DNS_TCP=53",
                "MY_WEB_SERVICE_PORT_HTTP=80",
            ]
        );
        let six = json!({"clusterIP": "fd00::1", "ports": [{"port": 443}]});
        let shown = shown(&[("shop", "six", six)], "shop", true);
        assert!(shown.contains(&"SIX_PORT_443_TCP=tcp://[fd00::1]:443".to_owned()), "{shown:?}");
        assert!(shown.contains(&"SIX_PORT_443_TCP_ADDR=fd00::1".to_owned()), "{shown:?}");
    }

    #[test]
    fn which_services_a_pod_is_told_of() {
        let at = |ip: &str| json!({"clusterIP": ip, "ports": [{"port": 1}]});
        let services = [
            ("default", "kubernetes", at("10.0.0.1")),
            ("default", "other", at("10.0.0.2")),
            ("shop", "web", at("10.0.0.3")),
            ("shop", "headless", at("None")),
            ("shop", "external", json!({"externalName": "x", "type": "ExternalName"})),
            ("shop", "empty", json!({"clusterIP": "10.0.0.9"})),
        ];
        let hosts = |services: &[(&str, &str, Value)], namespace, with_links| -> Vec<String> {
            shown(services, namespace, with_links).into_iter().filter(|one| one.contains("_HOST=")).collect()
        };
        let master = "KUBERNETES_SERVICE_HOST=10.0.0.1";
        assert_eq!(hosts(&services, "shop", true), [master, "WEB_SERVICE_HOST=10.0.0.3"]);
        assert_eq!(hosts(&services, "shop", false), [master]);
        assert_eq!(hosts(&services, "default", true), [master, "OTHER_SERVICE_HOST=10.0.0.2"]);
        assert_eq!(hosts(&services, "none", true), [master]);
        let mut own = services.to_vec();
        own.push(("shop", "kubernetes", at("10.0.0.8")));
        assert_eq!(hosts(&own, "shop", true)[0], "KUBERNETES_SERVICE_HOST=10.0.0.8");
        assert_eq!(hosts(&own, "shop", false), [master]);
    }
}
