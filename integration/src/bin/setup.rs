//! `scripts/setup`, second half: builds the real components.
//!
//! `setup` takes the machine's own where they are new enough, `setup pinned` none of them, and `setup tests` builds what only
//! tests use besides, `setup soak` what the soak does, `setup conformance` the suite of
//! upstream.

use std::env;

use anyhow::{Result, bail};
use berth_integration::components::{self, Set};

#[expect(clippy::print_stdout, reason = "progress of a command line program")]
fn main() -> Result<()> {
    let set = match env::args().nth(1).as_deref() {
        None => Set::Node,
        Some("pinned") => Set::Pinned,
        Some("tests") => Set::PinnedForTests,
        Some("soak") => Set::PinnedForSoak,
        Some("conformance") => Set::PinnedForConformance,
        Some(other) => bail!(
            "{other:?} is no set of components: say `pinned`, `tests`, `soak`, `conformance` or nothing"
        ),
    };
    components::build(set, |step| println!("setup: {step}"))
}
