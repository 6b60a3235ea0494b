//! The protocols of exec, attach and port-forward, the server's side, with no effect of their own.
//!
//! A client of these is the API server, or kubectl through it. It speaks SPDY/3.1, or channels in WebSocket messages, or
//! SPDY/3.1 within WebSocket messages. The shell reads and writes sockets, does HTTP and the framing of WebSockets, and
//! knows the time; what bytes mean and what is answered is decided here.
//!
//! ```text
//!                        ┌─ spdy::Connection ──┬─▶ remote_command::Session    (streams by their headers)
//!  socket ─▶ shell ──────┤                     └─▶ port_forward::Pairs
//!                        └─ web_socket::Codec ───▶ remote_command::Channel, port_forward::channel
//! ```
//!
//! Source: `k8s.io/cri-streaming/pkg/streaming`, `k8s.io/streaming/pkg/httpstream`, `k8s.io/apiserver/pkg/util/proxy`.
#![forbid(unsafe_code)]
#![deny(clippy::wildcard_enum_match_arm, missing_docs)]

pub mod negotiation;
pub mod port_forward;
pub mod remote_command;
pub mod spdy;
pub mod web_socket;
