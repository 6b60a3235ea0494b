//! SELinux labels of files: xattr(7).
#![expect(unsafe_code, reason = "setxattr(2) has no safe form in nix")]

use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;

use nix::libc;

/// The attribute that is a file's label.
const ATTRIBUTE: &CStr = c"security.selinux";

/// Gives a file a label, not what it leads to where it is a link.
pub(crate) fn set_label(path: &Path, label: &str) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: path and name end with a zero, and the value is as long as is said; the kernel keeps none of them.
    let result =
        unsafe { libc::lsetxattr(path.as_ptr(), ATTRIBUTE.as_ptr(), label.as_ptr().cast(), label.len(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The label of a file.
#[cfg(test)]
pub(crate) fn label(path: &Path) -> io::Result<String> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut found = [0_u8; 256];
    // SAFETY: path and name end with a zero, and the kernel writes no more than the buffer takes.
    let length =
        unsafe { libc::lgetxattr(path.as_ptr(), ATTRIBUTE.as_ptr(), found.as_mut_ptr().cast(), found.len()) };
    let length = usize::try_from(length).ok().ok_or_else(io::Error::last_os_error)?;
    Ok(String::from_utf8_lossy(&found[..length]).into_owned())
}
