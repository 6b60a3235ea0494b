//! `scripts/setup`, second half: builds the real components.

use anyhow::Result;
use berth_integration::components;

#[expect(clippy::print_stdout, reason = "progress of a command line program")]
fn main() -> Result<()> {
    components::build_all(|step| println!("setup: {step}"))
}
