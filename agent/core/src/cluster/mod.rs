//! The node in its cluster: what is said to the API server about pods, and when.
//!
//! A machine of its own beside the node's: it never decides what runs. The API's objects come in as JSON, since patches are
//! made of it; nothing here knows their types.

pub mod events;
mod mirror;
pub mod patch;
pub mod sync;
pub mod throttle;
