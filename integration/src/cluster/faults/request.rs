//! What a request asks for, as the API server's authorizer tells it (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`).

use hyper::Method;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// All objects, in pages.
    List,
    /// All objects as a stream, which goes on as a watch.
    StreamedList,
    /// What changes.
    Watch,
    /// To make an object.
    Create,
    /// To replace an object.
    Update,
    /// To change an object.
    Patch,
    /// To delete an object.
    Delete,
}

impl Verb {
    /// Every form of looking at what there is.
    pub const LISTS: [Self; 2] = [Self::List, Self::StreamedList];
    /// Everything that writes.
    pub const WRITES: [Self; 4] = [Self::Create, Self::Update, Self::Patch, Self::Delete];

    pub(super) fn of(method: &Method, path: &str, query: &str) -> Self {
        let has = |part: &str| query.split('&').any(|one| one == part);
        match *method {
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ if has("watch=true") && has("sendInitialEvents=true") => Self::StreamedList,
            _ if has("watch=true") => Self::Watch,
            _ if is_collection(path) => Self::List,
            _ => Self::Get,
        }
    }

    /// Whether its answer is lines, and has no end.
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::StreamedList | Self::Watch)
    }
}

fn is_collection(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let (group, parts): (usize, Vec<&str>) = match parts.next() {
        Some("api") => (1, parts.collect()),
        Some("apis") => (2, parts.collect()),
        _ => return false,
    };
    match parts.get(group..) {
        Some(["namespaces", _, rest @ ..]) if !rest.is_empty() => rest.len() == 1,
        Some(rest) => rest.len() == 1,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_it_asks_for() {
        for (method, path, query, verb) in [
            (Method::GET, "/api/v1/pods", "limit=500", Verb::List),
            (Method::GET, "/api/v1/namespaces/a/pods", "", Verb::List),
            (Method::GET, "/api/v1/namespaces/a/pods/p", "", Verb::Get),
            (Method::GET, "/api/v1/namespaces/a/pods/p/status", "", Verb::Get),
            (Method::GET, "/api/v1/namespaces", "", Verb::List),
            (Method::GET, "/api/v1/namespaces/a", "", Verb::Get),
            (Method::GET, "/api/v1/nodes/n", "", Verb::Get),
            (Method::GET, "/apis/coordination.k8s.io/v1/namespaces/a/leases/n", "", Verb::Get),
            (Method::GET, "/apis/node.k8s.io/v1/runtimeclasses", "", Verb::List),
            (Method::GET, "/version", "", Verb::Get),
            (Method::GET, "/api/v1/pods", "watch=true&resourceVersion=7", Verb::Watch),
            (Method::GET, "/api/v1/pods", "watch=true&sendInitialEvents=true", Verb::StreamedList),
            (Method::PATCH, "/api/v1/namespaces/a/pods/p/status", "", Verb::Patch),
            (Method::POST, "/api/v1/namespaces/a/events", "", Verb::Create),
            (Method::DELETE, "/api/v1/namespaces/a/pods/p", "", Verb::Delete),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/n", "", Verb::Update),
        ] {
            assert_eq!(Verb::of(&method, path, query), verb, "{method} {path}?{query}");
        }
    }
}
