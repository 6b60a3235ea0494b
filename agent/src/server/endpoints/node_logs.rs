//! `/logs/{path}`: files of the node's log directory, and the logs of its services.
//!
//! Source: `Run` of `pkg/kubelet/kubelet.go`, where it makes `logServer`; `pkg/kubelet/kubelet_server_journal.go`; `net/http/fs.go`.

mod files;
pub(in crate::server) mod opened;
pub(in crate::server) mod services;

use std::path::PathBuf;

use berth_core::server::{node_log::NodeLogQuery, query::Query};
use http::{StatusCode, request::Parts};

use self::{files::Asked, opened::statat};
use crate::{
    config::NodeLogAccess,
    program::Program,
    server::{
        Response,
        answer::{error, refused},
        held::Kept,
        lanes::Lanes,
    },
};

/// The node's own logs. Source: `nodeLogDir` of `pkg/kubelet/kubelet_server_journal.go`.
const ROOT: &str = "/var/log";

/// What the node's own logs are answered from.
#[derive(Debug)]
pub struct NodeLogs {
    /// `/var/log`.
    root: PathBuf,
    access: NodeLogAccess,
    /// `journalctl`, without arguments. All requests start it one after the other, so that one whose file system does not answer has one thread
    /// of the server and no more, however often it is asked for.
    journalctl: Program,
    lanes: Lanes,
}

impl NodeLogs {
    /// The logs of a node, as far as they may be asked for.
    #[must_use]
    pub fn of(access: NodeLogAccess, lanes: &Lanes) -> Self {
        let journalctl = Program { command: "journalctl".to_owned(), ..Program::default() };
        Self { root: ROOT.into(), access, journalctl, lanes: lanes.clone() }
    }

    /// Answers a request for what is at a path below the log directory, which has no `..`.
    pub(in crate::server) async fn answer(&self, path: &str, parts: &Parts) -> Response {
        if self.access == NodeLogAccess::Nothing {
            return error(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.");
        }
        let place = match self.lanes.logs.of_node() {
            Ok(place) => place,
            Err(refusal) => return refused(refusal),
        };
        let mut response = self.log(path, parts).await;
        Kept::put(&mut response, place);
        response
    }

    async fn log(&self, path: &str, parts: &Parts) -> Response {
        let asked = |path: &str, is_query| Asked::new(path, is_query, parts);
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let query = match NodeLogQuery::parse(&query) {
            _ if self.access != NodeLogAccess::Services => None,
            Ok(query) => query,
            Err(faults) => return error(StatusCode::BAD_REQUEST, &faults.text()),
        };
        let Some(query) = query else { return self.file(asked(path, false)).await };
        if !matches!(path, "" | "/") {
            return error(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode");
        }
        let no_file = match query.file() {
            Some(file) => self.no_file(file).await,
            None => None,
        };
        match (query.check(no_file.as_deref()), query.file()) {
            (Err(faults), _) => error(StatusCode::NOT_ACCEPTABLE, &faults.text()),
            (Ok(()), Some(file)) => self.file(asked(file, true)).await,
            (Ok(()), None) => self.services(query, parts).await,
        }
    }

    /// Why there is no such file, in the words of the kubelet.
    async fn no_file(&self, file: &str) -> Option<String> {
        let (root, path) = (self.root.clone(), file.to_owned());
        let found = self.lanes.node.run(move || statat(&root, &path)).await;
        match found {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(stopping) => Some(stopping.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
