//! Loop devices (`loop(4)`).
#![expect(unsafe_code, reason = "ioctl takes numbers and pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use berth_shim_core::mount::Device;
use nix::libc;

// `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Whether a device can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopAccess {
    ReadOnly,
    ReadWrite,
}

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// The number of a device that nobody uses, made if need be.
pub(crate) fn free_loop_device(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the request takes no argument and returns a number.
    let number = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_negative| io::Error::last_os_error())
}

/// Connects a device with an image, until its last user closes it.
pub(crate) fn configure_loop_device(
    device: impl AsFd,
    image: impl AsFd,
    (how, access): (Device, LoopAccess),
    name: &str,
) -> io::Result<()> {
    let fd = u32::try_from(image.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let mut flags = LO_FLAGS_AUTOCLEAR;
    if access == LoopAccess::ReadOnly {
        flags |= LO_FLAGS_READ_ONLY;
    }
    if how == Device::Direct {
        flags |= LO_FLAGS_DIRECT_IO;
    }
    let mut file_name = [0; 64];
    // Its end stays zero.
    for (to, from) in file_name.iter_mut().take(63).zip(name.bytes()) {
        *to = from;
    }
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = Config { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the request reads one `loop_config`, which outlives the call.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
