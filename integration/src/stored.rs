//! What a containerd keeps of an image that was pulled: made once by a real pull, kept in `target/stored`, and unpacked for each
//! world whose test is not about pulls.
//!
//! Invariant: the archive appears only when it is whole. A stamp beside it holds what it was made of: the image, and the recipe of
//! the containerd that pulled it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Archive, Builder};

use crate::containerd::{CRI_PLUGINS, Containerd, ctr};
use crate::image::{Image, Layer, Packing, hex};
use crate::lab::{self, World};
use crate::registry::{EXAMPLE, Registry};
use crate::{binaries, components, files};

/// The body of the lab that pulls.
const PULL: &str = "stored::pull";
const ARCHIVE: &str = "busybox.tar";
const STAMP: &str = "stamp";
/// What is kept of containerd's directory: the records, the content, and the layers as they were unpacked.
const KEPT: [&str; 3] = [
    "io.containerd.content.v1.content",
    "io.containerd.metadata.v1.bolt",
    "io.containerd.snapshotter.v1.overlayfs",
];

/// Pulls the image of the examples in a lab of its own, unless that was done. The program has to be one that calls
/// [`lab::run`] when it is [`lab::inside`] one.
///
/// # Errors
/// The lab failed; it has said why.
pub fn build() -> Result<()> {
    let (archive, stamp) = (dir().join(ARCHIVE), dir().join(STAMP));
    files::make_dir(dir())?;
    let lock = files::create(dir().join("lock"))?;
    let _one_builder = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let recipe = recipe()?;
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|old| old == recipe) {
        return Ok(());
    }
    let status = lab::command([PULL])?.status().context("start the lab that pulls")?;
    ensure!(status.success(), "nothing was pulled: the lab ended with {status}");
    files::write(&stamp, recipe)
}

fn dir() -> PathBuf {
    components::workspace().join("target/stored")
}

fn recipe() -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(&Image::new(&Layer::busybox(Packing::Tar)?, &json!(null)).manifest.bytes);
    hash.update(components::recipe_of("containerd")?);
    Ok(hex(&hash.finalize()))
}

/// Whether this body of a lab is the one that pulls.
pub(crate) fn is_asked_for() -> bool {
    std::env::args().nth(1).is_some_and(|what| what == PULL)
}

/// The body of the lab that pulls.
#[expect(clippy::print_stderr, reason = "the last word of a command line program")]
pub(crate) fn body() -> ExitCode {
    match pull() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{PULL}: {failure:#}");
            ExitCode::FAILURE
        }
    }
}

fn pull() -> Result<()> {
    let world = World::here()?;
    let registry = Registry::with_busybox(&world.root().join("registry"))?;
    let state = world.root().join("containerd");
    let mut containerd = Containerd::start(&state, binaries::search_path(None)?)?;
    // CRI gives images further names.
    containerd.stop()?;
    containerd.disable(&CRI_PLUGINS);
    containerd.start_again()?;
    ctr(&["images", "pull", "--plain-http", EXAMPLE])?;
    containerd.stop()?;
    registry.stop()?;

    let archive = dir().join(ARCHIVE);
    let part = archive.with_extension("part");
    let mut tar = Builder::new(files::create(&part)?);
    tar.follow_symlinks(false);
    for kept in KEPT {
        tar.append_dir_all(kept, Containerd::root(&state).join(kept))
            .with_context(|| format!("keep {kept}"))?;
    }
    tar.into_inner()?;
    fs::rename(&part, &archive).with_context(|| format!("keep {}", archive.display()))
}

/// Puts the image below the directory of a containerd that has not been started yet.
///
/// # Errors
/// [`build`] was not called.
pub fn unpack(containerd: &Path) -> Result<()> {
    let archive = dir().join(ARCHIVE);
    let root = Containerd::root(containerd);
    files::make_dir(&root)?;
    let mut tar = Archive::new(File::open(&archive).with_context(|| format!("open {}", archive.display()))?);
    tar.set_preserve_permissions(true);
    tar.unpack(&root).with_context(|| format!("unpack {}", archive.display()))
}
