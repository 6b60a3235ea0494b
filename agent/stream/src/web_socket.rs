//! The channel protocols within WebSocket messages. The framing of WebSockets is the shell's.
//!
//! A message begins with the number of a channel; the rest is its data. Or the messages are one stream of bytes of SPDY
//! ([`PortForward::Tunnel`]).
//!
//! Source: `k8s.io/streaming/pkg/httpstream/wsstream/conn.go`, `k8s.io/cri-streaming/pkg/streaming`,
//! `k8s.io/apiserver/pkg/util/proxy/websocket.go`, `streamtunnel.go`.

mod codec;
mod negotiation;

pub use codec::{Codec, Encoding, Incoming, MessageError};
pub use negotiation::{PortForward, RemoteCommand};

/// Most bytes of a message that a client sends; the library that reads frames is to refuse more. It is held as a whole for as long as
/// nobody takes it, so there are no more of them than SPDY has that nobody has taken. Upstream takes 32 MiB, clients send 32 KiB at once.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Most bytes of data in a message to a client.
pub const DATA_MAX: usize = 32 << 10;
