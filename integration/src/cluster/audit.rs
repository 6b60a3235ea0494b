//! What the API server was asked, by whom, and what it answered: its audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// Status codes of requests that nobody had the right to make.
const REFUSED: [u16; 2] = [401, 403];

/// One request, when it has been answered.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Who asked.
    pub user: User,
    /// The program, as it names itself.
    #[serde(default)]
    pub user_agent: String,
    /// What was asked about; none for paths that are no objects.
    #[serde(default)]
    pub object_ref: Option<ObjectRef>,
    /// `ResponseStarted`, of a watch that begins, or `ResponseComplete`, or `Panic`.
    pub stage: String,
    /// How it was answered.
    #[serde(default)]
    pub response_status: Option<ResponseStatus>,
    /// What was sent, of writes of pods, nodes, leases and events: a patch is here as it was sent.
    #[serde(default)]
    pub request_object: Option<Value>,
    /// What came of it.
    #[serde(default)]
    pub response_object: Option<Value>,
    /// When it arrived, in microseconds, by RFC 3339.
    pub request_received_timestamp: String,
    /// When it was answered.
    pub stage_timestamp: String,
}

/// Who asked.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct User {
    /// `system:node:<name>`, of a node.
    #[serde(default)]
    pub username: String,
    /// The groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What else is known of who asked.
    #[serde(default)]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The field of [`User::extra`] that says by which certificate or token who asked is known.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// An object, or all of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    /// `pods`, `nodes`, …
    pub resource: String,
    /// `status`, `eviction`, …
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// How a request was answered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ResponseStatus {
    /// The code of HTTP.
    pub code: u16,
    /// Why not.
    pub message: String,
}

impl AuditEvent {
    /// Whether a node asked.
    #[must_use]
    pub fn is_by_node(&self, name: &str) -> bool {
        self.user.username.strip_prefix("system:node:").is_some_and(|node| node == name)
    }

    /// By which certificate or token who asked is known.
    #[must_use]
    pub fn credential(&self) -> Option<&str> {
        self.user.extra.get(CREDENTIAL_ID)?.first().map(String::as_str)
    }

    /// Whether nobody is known to have asked: without credentials, or with some that the server does not take.
    #[must_use]
    pub fn is_by_nobody(&self) -> bool {
        self.user.username.is_empty() || self.user.username == "system:anonymous"
    }

    /// Whether it is about an object, and nobody is known to have asked. What everybody may see before it has joined is none: `kubeadm`
    /// asks for it so.
    fn is_of_nobody(&self) -> bool {
        self.is_by_nobody() && self.object_ref.as_ref().is_some_and(|about| about.namespace != "kube-public")
    }

    /// Whether it is of this verb and about this kind: `pods`, `pods/status`.
    #[must_use]
    pub fn is(&self, verb: &str, kind: &str) -> bool {
        let about = self.object_ref.as_ref();
        let (resource, subresource) = kind.split_once('/').unwrap_or((kind, ""));
        self.verb == verb
            && about.is_some_and(|about| about.resource == resource && about.subresource == subresource)
    }

    /// The name of what it is about; empty of a list and of what gets its name from the server.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object_ref.as_ref().map_or("", |about| about.name.as_str())
    }

    /// The code of the answer, 0 while there is none.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// Whether who asked had no right to.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        REFUSED.contains(&self.code())
    }
}

/// How the API server refuses what a node asks for about a pod that it does not take for the node's, or before it has made what it
/// needs itself.
const TOO_EARLY: [&str; 3] = [
    // `plugin/pkg/auth/authorizer/node`.
    "no relationship found between node",
    // `plugin/pkg/admission/noderestriction`.
    "node requested token bound to a pod scheduled on a different node",
    // `plugin/pkg/admission/priority`: the server makes its own classes when it has begun (`pkg/registry/scheduling/rest`).
    "no PriorityClass with name system-",
];

/// What a node had no right to ask for, of events in order, and what was asked by nobody: who has a right names itself, so it is the node's
/// in a cluster in which the test asks for nothing that way.
///
/// The API server learns by watches of its own which pods a node has, so a node that has heard of a pod first is refused and asks
/// again: what it was granted later was not forbidden.
#[must_use]
pub fn refused<'a>(events: &'a [AuditEvent], node: &str) -> Vec<&'a AuditEvent> {
    let of_node: Vec<&AuditEvent> = events.iter().filter(|event| event.is_by_node(node)).collect();
    let is_early = |at: usize, event: &AuditEvent| {
        let message = event.response_status.as_ref().map_or("", |status| status.message.as_str());
        TOO_EARLY.iter().any(|words| message.contains(words))
            && of_node[at..].iter().any(|later| {
                // Not its address: each try has another length of time in it.
                (&later.verb, &later.object_ref) == (&event.verb, &event.object_ref)
                    && (200..300).contains(&later.code())
            })
    };
    let refused =
        of_node.iter().enumerate().filter(|(at, event)| event.is_refused() && !is_early(*at, event));
    refused.map(|(_, event)| *event).chain(events.iter().filter(|event| event.is_of_nobody())).collect()
}

/// How each event begins.
const BEGIN: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/"#;

/// Every event of a log, in order. A line that is being written is not there yet.
pub(super) fn read(log: &Path) -> Result<Vec<AuditEvent>> {
    let file = File::open(log).with_context(|| format!("open {}", log.display()))?;
    let mut lines = BufReader::new(file);
    let mut events = Vec::new();
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).with_context(|| format!("read {}", log.display()))? > 0
        && line.ends_with(b"\n")
    {
        events.push(event(&String::from_utf8_lossy(&line))?);
        line.clear();
    }
    Ok(events)
}

/// The event of a line. A server that was killed may have left half of one, behind which the next server has begun.
fn event(line: &str) -> Result<AuditEvent> {
    let whole = line.rfind(BEGIN).map_or(line, |at| &line[at..]);
    serde_json::from_str(whole).with_context(|| format!("no audit event: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1",
        "stage":"ResponseComplete","requestURI":"/api/v1/nodes/two/status","verb":"patch",
        "user":{"username":"system:node:one","groups":["system:nodes"],
        "extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=01"]}},"sourceIPs":["192.0.2.10"],
        "userAgent":"x","objectRef":{"resource":"nodes","name":"two","apiVersion":"v1","subresource":"status"},
        "responseStatus":{"metadata":{},"status":"Failure","message":"no","code":403},
        "requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:00.000002Z"}"#;

    #[test]
    fn an_event_says_who_asked_for_what() {
        let event: AuditEvent = serde_json::from_str(LINE).unwrap();
        assert!(event.is_by_node("one") && !event.is_by_node("on") && !event.is_by_node("two"));
        assert!(
            event.is("patch", "nodes/status")
                && !event.is("patch", "nodes")
                && !event.is("get", "nodes/status")
        );
        assert_eq!((event.name(), event.code(), event.is_refused()), ("two", 403, true));
        assert_eq!(event.credential(), Some("X509SHA256=01"));
    }

    #[test]
    fn half_an_event_of_a_server_that_was_killed_is_none() {
        let half = &LINE[..LINE.len() / 2];
        assert_eq!(event(&format!("{half}{LINE}")).unwrap().name(), "two");
        event(half).unwrap_err();
    }

    #[test]
    fn what_was_asked_too_early_and_granted_later_was_not_forbidden() {
        let event = |code: u16, message: &str| {
            let mut event: AuditEvent = serde_json::from_str(LINE).unwrap();
            event.response_status = Some(ResponseStatus { code, message: message.to_owned() });
            event
        };
        let early = || event(403, "no relationship found between node 'one' and this object");
        let counts = |events: &[AuditEvent]| refused(events, "one").len();
        assert_eq!(counts(&[early(), event(201, "")]), 0);
        assert_eq!(counts(&[early(), early(), event(201, "")]), 0);
        let another_try =
            AuditEvent { request_uri: "/another?timeoutSeconds=2".to_owned(), ..event(201, "") };
        assert_eq!(counts(&[early(), another_try]), 0);
        let of_another = AuditEvent { object_ref: None, ..event(201, "") };
        assert_eq!(counts(&[early(), of_another]), 1);
        assert_eq!(counts(&[event(201, ""), early()]), 1);
        assert_eq!(counts(&[event(403, "no"), event(201, "")]), 1);
        assert_eq!(refused(&[early()], "two").len(), 0);
        for nobody in ["", "system:anonymous"] {
            let user = User { username: nobody.to_owned(), ..User::default() };
            let event = AuditEvent { user, ..event(if nobody.is_empty() { 401 } else { 200 }, "") };
            let discovery = ObjectRef { namespace: "kube-public".to_owned(), ..ObjectRef::default() };
            let discovery = AuditEvent { object_ref: Some(discovery), ..event.clone() };
            assert_eq!(refused(&[event, discovery], "one").len(), 1, "{nobody}");
        }
    }
}
