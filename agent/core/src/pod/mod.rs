//! One pod: what is known of it, what is to be done, what is shown.
//!
//! ```text
//!   events ──▶ PodMachine ──▶ Life { spec, goal, record, actual } ──▶ plan() ──▶ steps ──▶ effects
//!                                        └────────────────────────▶ status::of() ──▶ Publish
//! ```

pub mod actual;
mod apply;
pub(crate) mod fit;
pub mod gone;
mod grace;
mod image_need;
mod machine;
pub mod outcome;
pub mod plan;
pub mod port;
mod probe;
pub(crate) mod pulls;
mod report;
pub mod resize;
pub mod resource;
pub mod restart;
mod restart_all;
mod restore;
pub mod retention;
mod runs;
pub mod silence;
pub mod status;
pub mod step;
pub mod target;
mod text;
mod told_runs;
mod turn;

pub use machine::{PodMachine, Shared};
pub(crate) use plan::is_resizable;
pub use text::go_duration;
pub(crate) use text::network_not_ready;
