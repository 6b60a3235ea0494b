//! What is measured, as far as it has to be decided.

mod changes;
mod ends;
mod image_size;
mod node_start;
mod rejection;
mod resizes;
mod starts;
mod working;

use std::time::Duration;

use jiff::Timestamp;

pub use changes::{Changes, Ended, changes};
pub use ends::{Ends, Over};
pub use image_size::image_size;
pub use node_start::{Made, NodeStart, Ready};
pub use rejection::rejection;
pub(crate) use resizes::requested;
pub use resizes::{Infeasible, Requested, ResizeMeasure, Trigger};
pub use starts::{Started, Starts};
pub use working::{CONFIGS, LIFECYCLES, working};

/// From one moment to a later one; nothing where a clock was set back between them.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
