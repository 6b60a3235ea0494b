//! Which endpoint a request means, and what it asks to be allowed. Source: `pkg/kubelet/server/server.go`, `auth.go`.

use super::{
    ContainerPath, Endpoint, HealthCheck, PodPath, Refusal,
    path::{Path, Unclear},
};
use crate::id::{ContainerName, PodName, PodUid};

/// What Go's server says of a path that it does not know.
const NOT_FOUND: &str = "404 page not found\n";
/// Characters of a UID: 36 of the API server's, 32 of a static pod's.
const UID_MAX: usize = 128;

/// Endpoints beyond what is answered on every port (`InstallAuthRequiredHandlers`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debugging {
    /// None of them: `enableDebuggingHandlers` is false, or the port is the read-only one.
    Off,
    /// All of them.
    On {
        /// Whether `/logs/` is one (`enableSystemLogHandler`).
        logs: bool,
    },
}

/// What a request means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// What it does to the node, in the words of authorization; empty for a method that has none.
    pub verb: &'static str,
    /// Subresources of the node, one of which has to be allowed.
    pub subresources: &'static [&'static str],
    /// What is answered when it is allowed.
    pub target: Result<Endpoint, Refusal>,
}

/// Finds what is meant by a method and a path as it was sent.
#[must_use]
pub fn route(method: &str, raw_path: &str, debugging: Debugging) -> Route {
    let verb = verb(method);
    match Path::parse(raw_path) {
        Ok(path) => Route {
            verb,
            subresources: subresources(&path),
            target: endpoint(&path, debugging).and_then(|endpoint| with_method(method, endpoint)),
        },
        Err(unclear) => {
            let refusal = match unclear {
                Unclear::Malformed => Refusal::new(400, "400 Bad Request\n"),
                Unclear::Unclean => Refusal::new(404, NOT_FOUND),
                Unclear::TooLong => Refusal::new(414, "414 URI Too Long\n"),
            };
            Route { verb, subresources: &["proxy"], target: Err(refusal) }
        }
    }
}

fn verb(method: &str) -> &'static str {
    match method {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Those that are tried, in turn (`GetRequestAttributes`, with `KubeletFineGrainedAuthz`).
fn subresources(path: &Path) -> &'static [&'static str] {
    match path.segments.first().map(String::as_str) {
        Some("pods" | "runningpods") => &["pods", "proxy"],
        Some("healthz") => &["healthz", "proxy"],
        Some("configz") => &["configz", "proxy"],
        Some("stats") => &["stats"],
        Some("metrics") => &["metrics"],
        Some("logs") => &["log"],
        Some("checkpoint") => &["checkpoint"],
        Some("statusz") => &["statusz"],
        Some("flagz") => &["configz"],
        _ => &["proxy"],
    }
}

fn endpoint(path: &Path, debugging: Debugging) -> Result<Endpoint, Refusal> {
    let segments: Vec<&str> = path.segments.iter().map(String::as_str).collect();
    let may_end_with_slash = matches!(segments.first(), Some(&("pods" | "runningpods" | "logs")));
    if path.is_directory && !may_end_with_slash {
        return Err(Refusal::new(404, NOT_FOUND));
    }
    match (segments.as_slice(), debugging) {
        (["healthz"], _) => Ok(Endpoint::Health(HealthCheck::All)),
        (["healthz", "ping"], _) => Ok(Endpoint::Health(HealthCheck::Ping)),
        (["healthz", "log"], _) => Ok(Endpoint::Health(HealthCheck::Log)),
        (["healthz", "syncloop"], _) => Ok(Endpoint::Health(HealthCheck::SyncLoop)),
        (["pods"], _) => Ok(Endpoint::Pods),
        (["stats", "summary"], _) => Ok(Endpoint::Summary),
        (["metrics"], _) => Ok(Endpoint::Metrics),
        (["metrics", "cadvisor"], _) => Ok(Endpoint::MetricsOfCgroups),
        (["metrics", "resource"], _) => Ok(Endpoint::MetricsOfResources),
        (["metrics", "probes"], _) => Ok(Endpoint::MetricsOfProbes),
        (["metrics", "slis"], _) => Ok(Endpoint::MetricsOfHealth),
        (
            ["run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "logs", ..]
            | ["debug", "pprof", ..],
            Debugging::Off,
        ) => Err(Refusal::new(405, "Debug endpoints are disabled.\n")),
        (_, Debugging::Off) => Err(Refusal::new(404, NOT_FOUND)),
        (segments, Debugging::On { logs }) => for_debugging(segments, logs),
    }
}

fn for_debugging(segments: &[&str], logs: bool) -> Result<Endpoint, Refusal> {
    match segments {
        ["runningpods"] => Ok(Endpoint::RunningPods),
        ["configz"] => Ok(Endpoint::Configz),
        ["containerLogs", namespace, pod, container] => {
            container_of(namespace, pod, None, container).map(Endpoint::ContainerLogs)
        }
        [kind @ ("exec" | "attach" | "run"), namespace, pod, rest @ ..] => {
            let path = match rest {
                [container] => container_of(namespace, pod, None, container),
                [uid, container] => container_of(namespace, pod, Some(uid), container),
                _ => Err(Refusal::new(404, NOT_FOUND)),
            };
            path.map(match *kind {
                "exec" => Endpoint::Exec,
                "attach" => Endpoint::Attach,
                _ => Endpoint::Run,
            })
        }
        ["portForward", namespace, pod] => pod_of(namespace, pod, None).map(Endpoint::PortForward),
        ["portForward", namespace, pod, uid] => pod_of(namespace, pod, Some(uid)).map(Endpoint::PortForward),
        ["logs", ..] if !logs => Err(Refusal::new(405, "logs endpoint is disabled.\n")),
        ["logs", below @ ..] => Ok(Endpoint::NodeLogs { path: below.join("/") }),
        _ => Err(Refusal::new(404, NOT_FOUND)),
    }
}

fn with_method(method: &str, endpoint: Endpoint) -> Result<Endpoint, Refusal> {
    let kind = endpoint.kind();
    if kind.takes(method) {
        return Ok(endpoint);
    }
    let refusal = Refusal::new(405, "405: Method Not Allowed");
    Err(if kind.methods().is_empty() { refusal } else { refusal.with("allow", &kind.methods().join(", ")) })
}

/// No pod has another name, so what the kubelet says of a pod that is not there is said.
fn pod_of(namespace: &str, pod: &str, uid: Option<&str>) -> Result<PodPath, Refusal> {
    let is_uid = |uid: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        uid.len() <= UID_MAX && uid.bytes().all(inner)
    };
    if !is_label(namespace) || !is_subdomain(pod) || !uid.is_none_or(is_uid) {
        return Err(Refusal::new(404, "pod does not exist"));
    }
    let name = PodName { namespace: namespace.to_owned(), name: pod.to_owned() };
    Ok(PodPath { name, uid: uid.map(PodUid::new) })
}

fn container_of(
    namespace: &str,
    pod: &str,
    uid: Option<&str>,
    container: &str,
) -> Result<ContainerPath, Refusal> {
    let pod = pod_of(namespace, pod, uid)?;
    if !is_label(container) {
        return Err(Refusal::new(404, "container does not exist"));
    }
    Ok(ContainerPath { pod, container: ContainerName::new(container) })
}

/// A DNS label (RFC 1123).
fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// A DNS subdomain (RFC 1123).
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

#[cfg(test)]
mod tests;
