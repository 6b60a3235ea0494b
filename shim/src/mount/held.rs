//! Paths in the options of a file system, where they cannot be written out: named by descriptors instead.
//!
//! An overlay's options must fit into a page, which fifty layers fill, and the layers may be places that only a
//! descriptor leads to safely. In `/proc/self/fd` a descriptor's path is its number: 500 layers then take 2 KiB.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use berth_shim_core::mount::Datum;
use nix::unistd::fchdir;

use super::MountError;
use super::place::{open_directory, open_node};

/// Options, and the descriptors that they name.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Options in one text, as mount(2) takes them.
    pub(super) data: String,
    descriptors: Vec<OwnedFd>,
}

impl Held {
    /// Options as they were written.
    pub(super) fn written(data: &[Datum]) -> Self {
        let texts: Vec<&str> = data.iter().map(Datum::text).collect();
        Self { data: texts.join(","), descriptors: Vec::new() }
    }

    /// Adds an option.
    pub(super) fn push(&mut self, text: &str) {
        if !self.data.is_empty() {
            self.data.push(',');
        }
        self.data.push_str(text);
    }

    /// Adds an option whose paths are these, between colons. `None` is an empty one.
    pub(super) fn push_paths(&mut self, name: &str, paths: Vec<Option<OwnedFd>>) {
        let number = |path: &Option<OwnedFd>| {
            path.as_ref().map(|path| path.as_fd().as_raw_fd().to_string()).unwrap_or_default()
        };
        let numbers: Vec<String> = paths.iter().map(number).collect();
        self.push(&format!("{name}{}", numbers.join(":")));
        self.descriptors.extend(paths.into_iter().flatten());
    }

    /// Runs something where the options mean what they say.
    pub(super) fn within<T>(&self, run: impl FnOnce() -> Result<T, MountError>) -> Result<T, MountError> {
        if self.descriptors.is_empty() { run() } else { among_descriptors(run) }
    }
}

/// Runs something in the directory of this process's descriptors. The shim has one thread, so nobody else sees it.
fn among_descriptors<T>(run: impl FnOnce() -> Result<T, MountError>) -> Result<T, MountError> {
    const DESCRIPTORS: &str = "/proc/self/fd";
    let fail = |path: &str| {
        let path = path.to_owned();
        move |source| MountError::Open { path, source }
    };
    // By descriptor, since the shim's directory may have been removed.
    let before = open_node(".")?;
    fchdir(open_directory(DESCRIPTORS.as_ref())?).map_err(fail(DESCRIPTORS))?;
    let result = run();
    fchdir(before).map_err(fail("."))?;
    result
}
