//! Compressing rotated logs, on a thread of its own, so that the container does not wait for it.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread::JoinHandle,
};

use berth_shim_core::log::{Names, Step, compression};
use flate2::{Compression, write::GzEncoder};
use nix::libc;

use super::names;

/// What compresses the rotated files of one log, one time after another.
#[derive(Debug, Default)]
pub(super) struct Compressor(Option<JoinHandle<()>>);

impl Compressor {
    /// Begins to compress what is to be compressed of the log at `path`, unless that is being done: then the next rotation
    /// makes up for it.
    pub(super) fn begin(&mut self, path: &Path) {
        if self.0.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let path = path.to_owned();
        let thread = std::thread::Builder::new().name("compress".to_owned());
        // Without a thread it is left to the next rotation.
        self.0 = thread.spawn(move || compress_rotated(&path)).ok();
    }

    /// Waits until it is done.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.0.take() {
            // One that panicked has left what the next rotation removes.
            drop(thread.join());
        }
    }
}

fn compress_rotated(path: &Path) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let present = names(dir);
    for step in compression(name, present.iter().map(String::as_str)) {
        // There is nobody to tell, and what fails is tried again after the next rotation.
        drop(match step {
            Step::Remove(name) => fs::remove_file(dir.join(name)),
            Step::Compress(names) => compress(dir, &names),
        });
    }
}

fn compress(dir: &Path, Names { plain, temporary, compressed }: &Names) -> io::Result<()> {
    let [plain, temporary, compressed]: [PathBuf; 3] =
        [plain, temporary, compressed].map(|name| dir.join(name));
    let whole = copy(&plain, &temporary).and_then(|()| fs::rename(&temporary, &compressed));
    if whole.is_err() {
        drop(fs::remove_file(&temporary));
        return whole;
    }
    match fs::remove_file(&plain) {
        // It was one too many meanwhile, and went.
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_file(&compressed),
        removed => removed,
    }
}

fn copy(plain: &Path, temporary: &Path) -> io::Result<()> {
    // A pipe in its place is not waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut from = OpenOptions::new().read(true).custom_flags(flags).open(plain)?;
    let metadata = from.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    to.set_permissions(Permissions::from_mode(metadata.permissions().mode() & 0o777))?;
    let mut encoder: GzEncoder<File> = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish().map(drop)
}
