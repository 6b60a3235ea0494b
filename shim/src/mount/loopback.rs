//! Images as block devices.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use berth_shim_core::mount::Device;

use super::MountError;
use crate::sys::{self, LoopAccess};

/// Devices tried, since another process may take the one that was free.
const TRIES_MAX: usize = 64;

/// A loop device that ends with its last user: this, or the file system that is mounted from it.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: String,
    _open: OwnedFd,
}

impl LoopDevice {
    /// Sets a device up for an image, which `name` shows to people.
    pub(super) fn set_up(
        image: &OwnedFd,
        name: &str,
        how: Device,
        access: LoopAccess,
    ) -> Result<Self, MountError> {
        let fail = |source| MountError::Loop { image: name.to_owned(), source };
        let opened = |path: &str| {
            OpenOptions::new().read(true).write(access == LoopAccess::ReadWrite).open(path).map(OwnedFd::from)
        };
        let image = opened(&super::place::path_of(image)).map_err(fail)?;
        let control = opened_control().map_err(fail)?;
        for _try in 0..TRIES_MAX {
            let path = format!("/dev/loop{}", sys::free_loop_device(&control).map_err(fail)?);
            let device = opened(&path).map_err(fail)?;
            match sys::configure_loop_device(&device, &image, (how, access), name) {
                Ok(()) => return Ok(Self { path, _open: device }),
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
                Err(error) => return Err(fail(error)),
            }
        }
        Err(fail(io::Error::from(ErrorKind::ResourceBusy)))
    }
}

fn opened_control() -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open("/dev/loop-control").map(OwnedFd::from)
}
