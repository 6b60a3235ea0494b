//! How requests are counted. Source: `pkg/kubelet/server/server.go` `ServeHTTP`, `getMetricBucket`, `addMetricsBucketMatcher`.

use super::{Debugging, percent::decoded};

/// Methods that are counted by their name.
const METHODS: [&str; 8] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
/// Paths that are.
const PATHS: [&str; 18] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "flagz",
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
    "statusz",
];
/// Those of them that are `other` without endpoints for debugging. Of others the kubelet says then that they are disabled.
const FOR_DEBUGGING: [&str; 5] = ["checkpoint", "configz", "debug", "flagz", "statusz"];
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
        let path = decoded(raw_path).and_then(|bytes| String::from_utf8(bytes).ok());
        let path = path.as_deref().unwrap_or(raw_path);
        let mut parts = path.strip_prefix('/').unwrap_or(path).splitn(3, '/');
        let first = parts.next().unwrap_or_default();
        let path = match (first, parts.next()) {
            ("metrics", Some(second)) => known(&PATHS, &format!("metrics/{second}")),
            ("runningpods", _) => "runningpods",
            _ => known(&PATHS, first),
        };
        Self { method: known(&METHODS, method), path, server_type, is_long_running: lasts(path) }
    }

    /// On a port that has these endpoints for debugging.
    #[must_use]
    pub fn where_there_is(mut self, debugging: Debugging) -> Self {
        if debugging == Debugging::Off && FOR_DEBUGGING.contains(&self.path) {
            self.path = OTHER;
            self.is_long_running = lasts(OTHER);
        }
        self
    }
}

/// The kubelet has `portforward` here, which no path is.
fn lasts(path: &str) -> bool {
    matches!(path, "exec" | "attach" | "debug")
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
            ("POST", "/checkpoint/ns/p/c", ("POST", "checkpoint", false)),
            ("GET", "/statusz", ("GET", "statusz", false)),
            ("GET", "/flagz", ("GET", "flagz", false)),
            ("GET", "/debug/pprof/heap", ("GET", "debug", true)),
            ("GET", "/%70ods", ("GET", "pods", false)),
            ("GET", "//pods", ("GET", "other", false)),
            ("GET", "/%zz", ("GET", "other", false)),
            ("BREW", "/x/y", ("other", "other", false)),
            ("GET", "", ("GET", "other", false)),
        ] {
            let kind = RequestKind::of(method, path, ServerType::ReadOnly);
            assert_eq!((kind.method, kind.path, kind.is_long_running), expected, "{method} {path}");
            assert_eq!(kind.server_type.as_str(), "readonly");
            assert_eq!(kind.where_there_is(Debugging::On { logs: false }), kind, "{method} {path}");
        }
    }

    #[test]
    fn without_endpoints_for_debugging_some_are_counted_as_others() {
        for (path, expected) in [
            ("/configz", ("other", false)),
            ("/debug/pprof/heap", ("other", false)),
            ("/checkpoint/ns/p/c", ("other", false)),
            ("/statusz", ("other", false)),
            ("/flagz", ("other", false)),
            ("/exec/ns/p/c", ("exec", true)),
            ("/run/ns/p/c", ("run", false)),
            ("/logs/", ("logs", false)),
            ("/pods", ("pods", false)),
        ] {
            let kind = RequestKind::of("GET", path, ServerType::ReadWrite).where_there_is(Debugging::Off);
            assert_eq!((kind.path, kind.is_long_running), expected, "{path}");
        }
    }
}
