//! Which seeds a test runs.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs `test` with `usual` seeds, or with those that `SEED` and `SEEDS` name, and says which one has failed.
#[expect(clippy::print_stderr, reason = "the seed belongs to the failure")]
pub fn seeds(usual: u64, mut test: impl FnMut(u64)) {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let range = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(usual),
    };
    for seed in range {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("failed with SEED={seed}");
            resume_unwind(panic);
        }
    }
}
