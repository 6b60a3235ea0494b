//! How requests are counted. Source: `pkg/kubelet/server/server.go` `ServeHTTP`, `getMetricBucket`.

/// Methods that are counted by their name.
const METHODS: [&str; 8] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
/// Paths that are.
const PATHS: [&str; 15] = [
    "attach",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "stats",
];
const OTHER: &str = "other";

/// Which port was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerType {
    /// The one that asks who asks.
    ReadWrite,
    /// `readOnlyPort`.
    ReadOnly,
}

impl ServerType {
    /// As metrics name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWrite => "readwrite",
            Self::ReadOnly => "readonly",
        }
    }
}

/// What requests are counted by: a few values, whatever is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKind {
    /// The method, or `other`.
    pub method: &'static str,
    /// The beginning of the path, or `other`.
    pub path: &'static str,
    /// The port.
    pub server_type: ServerType,
    /// Whether it is one of those that last.
    pub is_long_running: bool,
}

impl RequestKind {
    /// Of a method and a path as it was sent.
    #[must_use]
    pub fn of(method: &str, raw_path: &str, server_type: ServerType) -> Self {
        let known = |all: &[&'static str], wanted: &str| {
            all.iter().copied().find(|name| *name == wanted).unwrap_or(OTHER)
        };
        let mut parts = raw_path.trim_start_matches('/').splitn(3, '/');
        let first = parts.next().unwrap_or_default();
        let path = match (first, parts.next()) {
            ("metrics", Some(second)) => known(&PATHS, &format!("metrics/{second}")),
            ("runningpods", _) => "runningpods",
            _ => known(&PATHS, first),
        };
        // The kubelet has `portforward` here, which no path is.
        let is_long_running = matches!(path, "exec" | "attach" | "debug");
        Self { method: known(&METHODS, method), path, server_type, is_long_running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_few_values() {
        for (method, path, expected) in [
            ("GET", "/pods", ("GET", "pods", false)),
            ("GET", "/metrics", ("GET", "metrics", false)),
            ("GET", "/metrics/cadvisor", ("GET", "metrics/cadvisor", false)),
            ("GET", "/metrics/x", ("GET", "other", false)),
            ("POST", "/exec/ns/p/c", ("POST", "exec", true)),
            ("POST", "/portForward/ns/p", ("POST", "portForward", false)),
            ("GET", "/runningpods/", ("GET", "runningpods", false)),
            ("BREW", "/x/y", ("other", "other", false)),
            ("GET", "", ("GET", "other", false)),
        ] {
            let kind = RequestKind::of(method, path, ServerType::ReadOnly);
            assert_eq!((kind.method, kind.path, kind.is_long_running), expected, "{method} {path}");
            assert_eq!(kind.server_type.as_str(), "readonly");
        }
    }
}
