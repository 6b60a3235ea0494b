//! The node in its cluster: what is said to the API server about pods and the node, and when.
//!
//! A machine of its own beside the node's: it never decides what runs. The API's objects come in as JSON, since patches are
//! made of it; nothing here knows their types.

pub mod certificate;
pub mod csi_node;
pub mod defaults;
mod ended;
pub mod events;
mod fields;
pub mod follow;
pub mod lease;
mod mirror;
pub mod node;
pub mod patch;
pub mod proxy;
pub mod spread;
pub mod sync;
pub mod telling;
pub mod throttle;
mod urgency;
