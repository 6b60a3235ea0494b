//! The node's server, as far as it decides: which endpoint a request means, who may ask for it, and what was asked for.
//!
//! Source: `pkg/kubelet/server/server.go`, `auth.go`.

mod access;
mod cache;
mod encoding;
mod endpoint;
pub mod file_server;
mod health;
mod identity;
pub mod log_options;
pub mod node_log;
mod path;
mod percent;
mod places;
pub mod query;
mod refusal;
mod request;
mod route;
pub mod streaming;

pub use access::{Attributes, Reviewed, Verdict, forbidden, questions, undecided};
pub use cache::{Cache, Kept};
pub use encoding::takes_gzip;
pub use endpoint::{ContainerPath, Endpoint, HealthCheck, Kind, PodPath};
pub use health::{Check, all_checks, measured, one_check};
pub use identity::{CertificateNames, Credential, User, bearer, of_certificate, recognize};
pub use path::PATH_MAX;
pub use places::{Entry, Origin, Place, Places};
pub use query::Query;
pub use refusal::Refusal;
pub use request::{RequestKind, ServerType};
pub use route::{Debugging, Route, route};
